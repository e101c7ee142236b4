"""Merges the runs and the dicts of a snapshot into columns of events, in the order of the file."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.allocator.torch_history.events import (
    DEFAULT_POOL,
    Events,
    events_of,
)
from vramscope.allocator.torch_history.rows import Rows
from vramscope.formats._fast_snapshot import EventRun, Packed
from vramscope.formats._fast_snapshot.opcode_blocks import Irregular

_COLUMNS = {"addr": "address", "size": "size", "stream": "stream", "time_us": "time_us"}
_STRETCH = 1 << 16
"""Events per pass: intermediate arrays stay in the processor's cache, and need no memory of their own."""
_DTYPES = {"addr": "u8", "size": "i8", "stream": "u8", "time_us": "i8"}


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
    merger = _Merger(found)
    found.whole["device_traces"] = [merger.events(trace) for trace in traces]
    return found.whole


@dataclass(slots=True, eq=False)
class _Layout:
    """The rows of a trace that belong to each run, and those that are dicts."""

    runs: list[tuple[int, EventRun]]
    """The runs, each with its first row."""
    rows: NDArray[Any]
    """The row of each dict."""
    dicts: list[Any]
    n_rows: int


class _Merger:
    """Merges traces.

    Objects that several traces share stay the same, as stacks are distinguished by identity.
    """

    __slots__ = ("_found", "_lists")

    def __init__(self, found: Packed) -> None:
        self._found = found
        objects = found.objects
        self._lists = [[objects.get(memo) for memo in frames] for frames in found.lists.frames]

    def events(self, trace: list[Any]) -> Events:
        """Return the events of one device's trace."""
        layout = self._layout(trace)
        rest = events_of(Rows(layout.dicts, "event {}".format))
        # Two threads halve the 0.1 s per million events: copies and sorts run without Python's lock.
        with ThreadPoolExecutor(2) as threads:
            numbers_of = {key: threads.submit(_numbers, key, layout, rest) for key in _COLUMNS}
            stacks_of = threads.submit(self._stacks, layout, rest)
            pools_of = threads.submit(self._pools, layout, rest)
            actions_of = threads.submit(self._actions, layout, rest)
        words, action = actions_of.result()
        pool_ids, pool = pools_of.result()
        stacks, stack = stacks_of.result()
        device_free = np.zeros(layout.n_rows, "i8")
        device_free[layout.rows] = rest.device_free
        return Events(
            words=words,
            action=action,
            pool_ids=pool_ids,
            pool=pool,
            stacks=stacks,
            stack=stack,
            device_free=device_free,
            tells_pools=_tells_pools(trace, layout),
            **{_COLUMNS[key]: numbers.result() for key, numbers in numbers_of.items()},
        )

    def _layout(self, trace: list[Any]) -> _Layout:
        layout, rows = _Layout([], np.zeros(0, "i8"), [], 0), []
        for entry in trace:
            if type(entry) is int:
                run = self._found.runs[entry]
                layout.runs.append((layout.n_rows, run))
                layout.n_rows += len(run.action)
            else:
                layout.dicts.append(entry)
                rows.append(layout.n_rows)
                layout.n_rows += 1
        layout.rows = np.array(rows, "i8")
        return layout

    def _actions(self, layout: _Layout, rest: Events) -> tuple[tuple[str, ...], NDArray[Any]]:
        if not layout.runs:
            return rest.words, rest.action
        memo = np.full(layout.n_rows, layout.runs[0][1].action[0], "i4")
        for at, run in layout.runs:
            memo[at : at + len(run.action)] = run.action
        used, place = _used(memo, len(self._found.list_of_memo))
        words: list[Any] = [self._found.objects.get(i) for i in used]
        if any(type(word) is not str for word in words):
            raise Irregular
        action = place[memo]
        action[layout.rows] = rest.action + len(words)
        return (*words, *rest.words), action

    def _pools(self, layout: _Layout, rest: Events) -> tuple[tuple[tuple[int, int], ...], NDArray[Any]]:
        pool_ids: dict[tuple[int, int], int] = {}
        pool = np.zeros(layout.n_rows, "i4")
        places = [pool_ids.setdefault(each, len(pool_ids)) for each in (DEFAULT_POOL, *rest.pool_ids)]
        for at, run in layout.runs:
            if run.pool is not None:
                codes, index = np.unique(run.pool, return_inverse=True)
                here = [pool_ids.setdefault(self._pool(code), len(pool_ids)) for code in codes.tolist()]
                pool[at : at + len(run.action)] = np.array(here, "i4")[index]
        pool[layout.rows] = np.array(places[1:], "i4")[rest.pool]
        return _in_order(tuple(pool_ids), pool)

    def _pool(self, code: int) -> tuple[int, int]:
        if code >= 0:
            return code & 0xFFFFFFFF, code >> 32
        pool = self._found.objects[-1 - code]
        if type(pool) is not tuple or list(map(type, pool)) != [int, int]:
            raise Irregular
        return pool

    def _stacks(self, layout: _Layout, rest: Events) -> tuple[tuple[list[Any], ...], NDArray[Any]]:
        """Return the lists of frames and the index of each event's list.

        The lists are those inside events, those that events refer to, and those of the dicts.
        """
        lists = list(self._lists)
        stack = np.empty(layout.n_rows, "i4")
        for at, run in layout.runs:
            stack[at : at + len(run.action)] = self._resolved(run.frames, lists)
        stack[layout.rows] = np.where(rest.stack < 0, -1, rest.stack + len(lists))
        return _in_order((*lists, *rest.stacks), stack)

    def _resolved(self, frames: NDArray[Any], lists: list[list[Any]]) -> NDArray[Any]:
        """Return indices into *lists*; the lists that were built are appended to it."""
        elsewhere = frames < -1
        memo = -2 - frames[elsewhere]
        found = frames.copy()
        known = self._found.list_of_memo[memo]
        built, index = np.unique(memo[known < 0], return_inverse=True)
        given = [self._found.objects[i] for i in built.tolist()]
        if any(type(each) is not list for each in given):
            raise Irregular
        known[known < 0] = index + len(lists)
        lists += given
        found[elsewhere] = known
        return found


def _numbers(key: str, layout: _Layout, rest: Events) -> NDArray[Any]:
    """Return a column; the runs lose theirs, whose memory the next one takes."""
    # Zeros that nothing is written to take no memory: most programs have one stream, or 40 MB per 5 million.
    column = np.zeros(layout.n_rows, _DTYPES[key])
    for at, run in layout.runs:
        given = run.numbers.pop(key)
        if given is not None:
            column[at : at + len(run.action)] = given
    column[layout.rows] = getattr(rest, _COLUMNS[key])
    return column


def _tells_pools(trace: Sequence[Any], layout: _Layout) -> bool:
    if not trace:
        return False
    return "pool_id" in (layout.runs[0][1].shape.values if type(trace[0]) is int else trace[0])


def _used(memo: NDArray[Any], n_memo: int) -> tuple[list[int], NDArray[Any]]:
    """Return the numbers below *n_memo* that occur in *memo*, and the position of each among them."""
    occurs, place = np.zeros(n_memo, "?"), np.zeros(n_memo, "i4")
    occurs[memo] = True
    used = np.flatnonzero(occurs)
    place[used] = np.arange(len(used))
    return used.tolist(), place


def _in_order(values: tuple[Any, ...], index: NDArray[Any]) -> tuple[tuple[Any, ...], NDArray[Any]]:
    """Return the *values* that *index* uses, in the order of their first use, and the new index.

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
    return tuple(values[i] for i in order.tolist()), place[index]
