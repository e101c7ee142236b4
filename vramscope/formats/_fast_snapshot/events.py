"""Joins the runs and the dicts of a snapshot to columns of events, in the order of the file."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vramscope.allocator.torch_history.events import DEFAULT_POOL, Events, Rows, events_of
from vramscope.formats._fast_snapshot import Packed
from vramscope.formats._fast_snapshot.opcode_blocks import Irregular
from vramscope.formats._fast_snapshot.runs import MOST_ACTIONS, EventRun
from vramscope.model.table import Array, stretches

_COLUMNS = {"addr": "address", "size": "size", "stream": "stream", "time_ns": "time_ns"}
_STRETCH = 1 << 16
"""Events per pass: intermediate arrays stay in the processor's cache, and need no memory of their own."""


def snapshot_of(found: Packed) -> Any:
    """Return the snapshot with its traces as ``Events``.

    Raises Irregular, or FormatError as ``histories`` does.
    """
    if not found.runs:
        return found.whole
    traces = found.whole.get("device_traces") if type(found.whole) is dict else None
    if type(traces) is not list or not all(type(trace) is list for trace in traces):
        raise Irregular
    numbers = [entry for trace in traces for entry in trace if type(entry) is int]
    if numbers != list(range(len(found.runs))):
        raise Irregular  # events where torch has none
    joined = _Joined(found, traces)
    found.whole["device_traces"] = [joined.events(layout) for layout in joined.layouts]
    return found.whole


@dataclass(slots=True, eq=False)
class _Layout:
    first_row: int
    """The first row of the trace among those of all traces."""
    runs: list[tuple[int, EventRun]]
    """The runs, each with its first row."""
    at_dicts: list[int]
    """The row of each dict."""
    dicts: list[Any]
    n_rows: int = 0
    tells_pools: bool = False
    """Whether the first event names its pool."""

    @property
    def rows(self) -> slice:
        """The rows of the trace among those of all traces."""
        return slice(self.first_row, self.first_row + self.n_rows)


class _Joined:
    """The runs and dicts of all traces in their order.

    Objects that several traces share stay the same, as stacks are distinguished by identity.
    """

    def __init__(self, found: Packed, traces: Sequence[list[Any]]) -> None:
        self._found, self._columns = found, found.columns
        objects = found.objects
        self._lists = [[objects.get(memo) for memo in frames] for frames in found.lists.frames]
        self.layouts: list[_Layout] = []
        n_rows = 0
        for trace in traces:
            self.layouts.append(_layout(trace, found.runs, n_rows))
            n_rows += self.layouts[-1].n_rows
        first = [layout.first_row + at for layout in self.layouts for at, _ in layout.runs]
        self._columns.spread(found.runs, first, n_rows)

    def events(self, layout: _Layout) -> Events:
        rest = events_of(Rows(layout.dicts, "event {}".format))
        words, action = self._actions(layout, rest)
        pool_ids, pool = self._pools(layout, rest)
        stacks, stack = self._stacks(layout, rest)
        numbers = {}
        for name, of_events in _COLUMNS.items():
            column = numbers[of_events] = self._columns.column(name, layout.rows)
            column[layout.at_dicts] = getattr(rest, of_events)
        # Zeros that may be anywhere in the heap would be written to memory.
        device_free: Array = np.broadcast_to(np.int64(0), layout.n_rows)
        if rest.device_free.any():
            device_free = np.zeros(layout.n_rows, "i8")
            device_free[layout.at_dicts] = rest.device_free
        return Events(
            words=words,
            action=action,
            pool_ids=pool_ids,
            pool=pool,
            stacks=stacks,
            stack=stack,
            device_free=device_free,
            tells_pools=layout.tells_pools,
            metadata=self._texts(layout, rest),
            **numbers,
        )

    def _actions(self, layout: _Layout, rest: Events) -> tuple[tuple[str, ...], Array]:
        words: list[Any] = [self._found.objects[memo] for memo in self._found.actions]
        if any(type(word) is not str for word in words) or len(words) + len(rest.words) > MOST_ACTIONS:
            raise Irregular
        action = self._columns.column("action", layout.rows)
        action[layout.at_dicts] = rest.action + len(words)
        return (*words, *rest.words), action

    def _texts(self, layout: _Layout, rest: Events) -> tuple[tuple[int, str], ...]:
        of_dicts = [(layout.at_dicts[row], text) for row, text in rest.metadata]
        if self._columns.is_zero("text"):
            return tuple(of_dicts)
        column = self._columns.column("text", layout.rows)
        column[layout.at_dicts] = 0
        rows = np.flatnonzero(column)
        texts = [self._found.objects.get(memo) for memo in (column[rows] - 1).tolist()]
        if any(type(text) is not str for text in texts):
            raise Irregular
        of_runs = [(row, text) for row, text in zip(rows.tolist(), texts, strict=True) if text]
        return tuple(sorted([*of_dicts, *of_runs]))

    def _pools(self, layout: _Layout, rest: Events) -> tuple[tuple[tuple[int, int], ...], Array]:
        pool_ids: dict[tuple[int, int], int] = {}
        pool = np.zeros(layout.n_rows, "i4")
        places = [pool_ids.setdefault(each, len(pool_ids)) for each in (DEFAULT_POOL, *rest.pool_ids)]
        if self._columns.is_zero("pool") and len(pool_ids) == 1:
            return tuple(pool_ids), pool  # nothing is written to it, so it takes no memory
        column = self._columns.column("pool", layout.rows)
        for at, run in layout.runs:
            codes, index = np.unique(column[at : at + run.n_rows], return_inverse=True)
            here = [pool_ids.setdefault(self._pool(code), len(pool_ids)) for code in codes.tolist()]
            pool[at : at + run.n_rows] = np.array(here, "i4")[index]
        pool[layout.at_dicts] = np.array(places[1:], "i4")[rest.pool]
        return _in_order(tuple(pool_ids), pool)

    def _pool(self, code: int) -> tuple[int, int]:
        if code >= 0:
            return code & 0xFFFFFFFF, code >> 32
        pool = self._found.objects[-1 - code]
        if type(pool) is not tuple or list(map(type, pool)) != [int, int]:
            raise Irregular
        return pool

    def _stacks(self, layout: _Layout, rest: Events) -> tuple[tuple[list[Any], ...], Array]:
        """Return the lists of frames and the index of each event's list.

        The lists are those inside events, those that events refer to, and those of the dicts.
        """
        stack = self._columns.column("stack", layout.rows)
        stack[layout.at_dicts] = -1
        elsewhere = np.flatnonzero(stack < -1)
        built, index = np.unique(-2 - stack[elsewhere], return_inverse=True)
        given = [self._found.objects[memo] for memo in built.tolist()]
        if any(type(each) is not list for each in given):
            raise Irregular
        lists = [*self._lists, *given]
        stack[elsewhere] = index + len(self._lists)
        stack[layout.at_dicts] = np.where(rest.stack < 0, -1, rest.stack + len(lists))
        return _in_order((*lists, *rest.stacks), stack)


def _layout(trace: Sequence[Any], runs: Sequence[EventRun], first_row: int) -> _Layout:
    found = _Layout(first_row, [], [], [])
    for entry in trace:
        if type(entry) is int:
            found.runs.append((found.n_rows, runs[entry]))
            found.n_rows += runs[entry].n_rows
        else:
            found.dicts.append(entry)
            found.at_dicts.append(found.n_rows)
            found.n_rows += 1
    if trace:
        found.tells_pools = "pool_id" in (runs[trace[0]].shape.values if type(trace[0]) is int else trace[0])
    return found


def _in_order(values: tuple[Any, ...], index: Array) -> tuple[tuple[Any, ...], Array]:
    """Return the *values* that *index* uses, in the order of their first use; *index* becomes that of these.

    −1 in *index* stands for no value.
    """
    first = np.full(len(values) + 1, len(index), "i8")
    for end in range(len(index), 0, -_STRETCH):  # the last one to be written is the first to occur
        begin = max(end - _STRETCH, 0)
        first[index[begin:end][::-1]] = np.arange(begin, end)[::-1]
    n_used = int(np.count_nonzero(first[:-1] < len(index)))
    order = np.argsort(first[:-1], kind="stable")[:n_used]
    place = np.full(len(values) + 1, -1, "i4")
    place[order] = np.arange(n_used)
    # In place: fresh memory for the index of 5 million events took 20 ms. −1 is the last place.
    for at in stretches(len(index)):
        index[at] = place[index[at]]
    return tuple(values[i] for i in order.tolist()), index
