"""Converts torch's allocator snapshot, of any version from 2.0 to 2.13, into columns.

Nothing here imports torch: a snapshot is plain data, from a file or from ``torch.cuda.memory._snapshot()``.
Whatever a snapshot lacks becomes a note; malformed data raises FormatError with the path inside of the
snapshot.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vramscope.allocator.settings import Settings
from vramscope.allocator.torch_history.annotations import PendingMark, annotation_marks, marks_of, text_marks
from vramscope.allocator.torch_history.events import (
    DEFAULT_POOL,
    Events,
    Rows,
    check_pools,
    checked,
    distinct,
    events_of,
)
from vramscope.allocator.torch_history.stack_reader import StackReader
from vramscope.errors import FormatError
from vramscope.model.codes import NoteCode
from vramscope.model.marks import MarkKind, Marks, Note, counted
from vramscope.model.snapshot import Blocks, BlockState, Segments, Snapshot
from vramscope.model.stacks import StackBuilder
from vramscope.model.table import Array, looked_up
from vramscope.model.trace import Action, Trace
from vramscope.units import format_bytes, format_share

_ACTIONS = {action.name.lower(): int(action) for action in Action}
_UNKNOWN = 255
_TEXTS = frozenset({"annotate"})
"""Actions that are no events: they become marks."""
_STATES = {
    "active_allocated": BlockState.ALLOCATED,
    "active_pending_free": BlockState.PENDING_FREE,
    "active_awaiting_free": BlockState.PENDING_FREE,  # torch's docstring; never seen in a file
    "inactive": BlockState.INACTIVE,
}
_LARGEST = 1 << 48
"""Bytes (256 TiB): a larger value is no memory size, and sums of it would overflow."""


@dataclass(frozen=True, slots=True)
class DeviceHistory:
    """What one device's allocator did and what it held at the end."""

    device: int
    trace: Trace
    """The events as torch wrote them: without ``block_size``, which is 0, and the trace may start late."""
    final: Snapshot
    pools: tuple[tuple[int, int], ...]
    marks: Marks
    settings: Settings
    notes: tuple[Note, ...] = ()


def histories(
    snapshot: Mapping[str, Any] | list[Any], stacks: StackBuilder, torch: str = ""
) -> tuple[list[DeviceHistory], list[Note]]:
    """Convert a snapshot to one history per device that holds segments or has events.

    Takes about 2 s of CPU per million events.

    *torch* is the version that wrote the snapshot, guessed where ''. Returns the histories in order of
    device, and notes about the whole snapshot. Raises FormatError if the data is no snapshot of torch.
    """
    whole = _whole(snapshot)
    segments = Rows(checked(whole.get("segments", []), list, "segments"), lambda i: f"segments[{i}]")
    traces = checked(whole.get("device_traces", []), list, "device_traces")
    rows = checked(whole.get("external_annotations", []), list, "external_annotations")
    annotations = Rows(rows, lambda i: f"external_annotations[{i}]")
    given = checked(whole.get("allocator_settings", {}), dict, "allocator_settings")
    settings = Settings.from_snapshot(given, torch=torch or _version(given, traces))
    reader = StackReader(stacks)
    owners = segments.integers("device", "i8", 0)
    found = []
    # Devices that hold segments or have events; device 0 if none does, so that something is shown.
    busy = {i for i, trace in enumerate(traces) if trace}
    for device in sorted(busy.union(owners.tolist())) or [0]:
        events = _events(traces, device)
        mine = _SegmentRows(whole.get("segments", []), np.flatnonzero(owners == device).tolist())
        found.append(_history(device, events, mine, annotations, (settings, reader)))
    return found, _notes(found)


def _whole(snapshot: Any) -> dict[str, Any]:
    """Check that the snapshot is an object of lists; ``torch.cuda.memory_snapshot()`` gives the bare list of
    segments.
    """
    if type(snapshot) is list:
        return {"segments": snapshot}
    if type(snapshot) is not dict or not ("segments" in snapshot or "device_traces" in snapshot):
        raise FormatError(
            "this is no memory snapshot: it has neither 'segments' nor 'device_traces'. "
            "torch.cuda.memory._dump_snapshot(path) writes one"
        )
    return snapshot


def _version(given: Mapping[str, Any], traces: list[Any]) -> str:
    """Guess the torch version that wrote it, as far as rules differ, by the keys that each version added."""
    if "max_round_threshold" in given:
        return "2.13"
    first = next((trace for trace in traces if trace), None)
    if type(first) is Events:
        return "2.12" if first.tells_pools else "2.11"
    if type(first) is not list or type(first[0]) is not dict:
        return "2.13"
    return "2.12" if "pool_id" in first[0] else "2.11"


def _events(traces: list[Any], device: int) -> Events:
    trace = traces[device] if device < len(traces) else []
    if type(trace) is Events:
        return trace
    where = f"device_traces[{device}]"
    return events_of(Rows(checked(trace, list, where), lambda i: f"{where}[{i}]"))


class _SegmentRows:
    """The segments of one device and all their blocks in one list, with their places in the file."""

    __slots__ = ("blocks", "counts", "rows")

    def __init__(self, segments: Sequence[Any], index: list[int]) -> None:
        self.rows = Rows([segments[i] for i in index], lambda i: f"segments[{index[i]}]")
        lists = self.rows.column("blocks", (list,), [])
        self.counts = np.array([len(blocks) for blocks in lists], dtype="i8")
        self.blocks = Rows([block for blocks in lists for block in blocks], self._where(index))

    def _where(self, index: list[int]) -> Any:
        def where(i: int) -> str:
            starts = np.cumsum(self.counts) - self.counts
            segment = int(np.searchsorted(starts + self.counts, i, side="right"))
            return f"segments[{index[segment]}].blocks[{i - starts[segment]}]"

        return where


def _history(
    device: int,
    events: Events,
    segments: _SegmentRows,
    annotations: Rows,
    shared: tuple[Settings, StackReader],
) -> DeviceHistory:
    settings, reader = shared
    pools: dict[tuple[int, int], int] = {DEFAULT_POOL: 0}
    notes: list[Note] = []
    rows = segments.rows
    kinds = rows.column("segment_type", (str,), "large")
    address, size = rows.integers("address", "u8"), rows.integers("total_size", "i8")
    _believable(size, "segment")
    held = Segments(
        address=address,
        size=size,
        stream=rows.integers("stream", "u8", 0),
        pool=_pool_column(rows, "segment_pool_id", pools),
        is_large=np.array([kind == "large" for kind in kinds], dtype="?"),
        is_expandable=np.array(rows.column("is_expandable", (bool,), False), dtype="?"),
        stack_id=reader.column(rows),
    )
    trace, ooms, texts = _trace(events, held, (pools, reader, notes))
    final = _final(held, segments, trace, (reader, notes))
    marks = [*ooms, *(annotation_marks(annotations, device, trace) if trace.has_clock else ())]
    notes += _missing(trace, len(annotations))
    return DeviceHistory(device, trace, final, tuple(pools), marks_of(marks, texts), settings, tuple(notes))


def _missing(trace: Trace, n_annotations: int) -> list[Note]:
    """What the trace itself lacks, one note each."""
    n_events = int(np.count_nonzero(trace.action != Action.SNAPSHOT))
    if not n_events:
        text = "no events were recorded: only the state at the moment of the snapshot is known"
        return [Note(NoteCode.NO_TRACE, text)]
    found = []
    if not trace.has_clock:
        text = "events have no time (torch ≤ 2.1 wrote none): they are shown in their order"
        found.append(Note(NoteCode.NO_CLOCK, text))
        text = f"{n_annotations} annotations have no place without it"
        found += counted(NoteCode.NO_MARKS, n_annotations, text)
    moves = trace.action <= Action.FREE_COMPLETED
    n_blind = int(np.count_nonzero(moves & (trace.stack_id == 0)))
    share = n_blind / max(int(np.count_nonzero(moves)), 1)
    moves_were = "allocation or free was" if n_blind == 1 else "allocations and frees were"
    text = f"{n_blind:,} {moves_were} recorded without a call stack ({format_share(share, 1, 0)})"
    return found + counted(NoteCode.NO_STACK, n_blind, text)


def _pool_column(rows: Rows, key: str, pools: dict[tuple[int, int], int]) -> Array:
    """Indices into *pools*, to which new pools are added."""
    ids, index = distinct([tuple(pool) for pool in rows.column(key, (tuple, list), DEFAULT_POOL)])
    check_pools(ids, key)
    return _places(ids, pools)[index]


def _places(ids: Sequence[tuple[int, int]], pools: dict[tuple[int, int], int]) -> Array:
    """Index of each of *ids* into *pools*, to which new ones are added."""
    return np.array([pools.setdefault(pool, len(pools)) for pool in ids], dtype="i4")


def _pools(events: Events, pools: dict[tuple[int, int], int]) -> Array:
    """Index of each event's pool into *pools*, to which new ones are added."""
    places = _places(events.pool_ids, pools)
    if not places.any():  # nearly always; zeros that nothing is written to take no memory
        return np.zeros(len(events), "i4")
    return places[events.pool]


def _trace(
    events: Events, held: Segments, shared: tuple[dict[tuple[int, int], int], StackReader, list[Note]]
) -> tuple[Trace, list[PendingMark], list[PendingMark]]:
    """The events in order, a mark for each out-of-memory error with the bytes that the device had free, and
    marks of the texts that the program put into its events.
    """
    pools, reader, notes = shared
    action = _actions(events, notes)
    if events.size.max(initial=0) >= _LARGEST:
        # A failed request may have had any size.
        _believable(np.where(action <= Action.SEGMENT_UNMAP, events.size, 0), "event")
    trace = Trace(
        action=action,
        time_ns=events.time_ns,
        address=events.address,
        size=events.size,
        block_size=np.zeros(len(events), "i8"),  # nothing is written to it, so it takes no memory
        stream=events.stream,
        pool=_pools(events, pools),
        stack_id=looked_up(reader.ids(events.stacks), events.stack),
    )
    free, order = events.device_free, _order(trace, notes)
    if order is not None:
        trace, free = trace.rows(order), free[order]
    texts = text_marks(events, trace, order)
    if len(pools) > 1 and not trace.pool.any():
        trace = _with_pools(trace, held)
    ooms = np.flatnonzero(trace.action == Action.OOM).tolist()
    failures = [PendingMark(MarkKind.OOM, int(trace.time_ns[i]), i + 1, value=int(free[i])) for i in ooms]
    return trace, failures, texts


def _actions(events: Events, notes: list[Note]) -> Array:
    words = events.words
    codes = np.array([_ACTIONS.get(word, _UNKNOWN) for word in words], dtype="u1")
    action = looked_up(codes, events.action)
    is_kept = np.array([word in _ACTIONS or word in _TEXTS for word in words])
    n_unknown = 0 if is_kept.all() else int(np.count_nonzero(~is_kept[events.action]))
    if n_unknown:
        unknown = {word[:40] for word in words} - _ACTIONS.keys() - _TEXTS
        names = ", ".join(sorted(unknown)[:5])
        text = f"{n_unknown} events of kinds that this version does not know were left out: {names}"
        notes.append(Note(NoteCode.UNKNOWN_ACTION, text, n_unknown))
    return action


def _believable(size: Array, what: str) -> None:
    if len(size) and size.max() >= _LARGEST:
        at = int(size.argmax())
        text = f"{what} {at} has a size of {format_bytes(int(size[at]))}"
        raise FormatError(f"{text}: this is no snapshot of torch, or damaged")


def _order(trace: Trace, notes: list[Note]) -> Array | None:
    """Rows of known events, ordered by time; None where all are known and in order, as nearly always.

    A ring whose size was changed while it ran is not in order.
    """
    is_known = trace.action != _UNKNOWN
    time = trace.time_ns if is_known.all() else trace.time_ns[is_known]
    n_back = int(np.count_nonzero(time[1:] < time[:-1]))
    if not n_back or time.min() <= 0:
        return None if len(time) == len(trace) else np.flatnonzero(is_known)
    text = f"the trace goes back in time {n_back} times and was sorted: its ring was resized while it ran"
    notes.append(Note(NoteCode.REORDERED, text, n_back))
    return np.flatnonzero(is_known)[np.argsort(time, kind="stable")]


def _with_pools(trace: Trace, held: Segments) -> Trace:
    """The pool of each event; torch ≤ 2.11 names none, so the segment at the address at the end gives it.

    The driver gives a released address again: what was there before that segment counts as the default pool.
    """
    order = np.argsort(held.address, kind="stable")
    start, size, pool = held.address[order], held.size[order], held.pool[order]
    at = np.searchsorted(start, trace.address, side="right") - 1
    inside = (at >= 0) & (trace.address - start[at] < size[at].astype("u8"))
    made = np.flatnonzero(inside & (trace.action == Action.SEGMENT_ALLOC))
    since = np.zeros(len(held), "i8")
    np.maximum.at(since, at[made], made)
    inside &= np.arange(len(trace)) >= since[at]
    columns = dict(trace.columns()) | {"pool": np.where(inside, pool[at], 0).astype("i4")}
    return Trace(**columns)


def _final(
    held: Segments, segments: _SegmentRows, trace: Trace, shared: tuple[StackReader, list[Note]]
) -> Snapshot:
    """Segments by address, and their blocks in the same order."""
    reader, notes = shared
    time_ns = int(trace.time_ns[-1]) if len(trace) else 0
    if not len(held):
        return Snapshot(event=len(trace), time_ns=time_ns)
    owner = np.repeat(np.arange(len(held)), segments.counts)
    blocks = _blocks(segments, held, owner, (reader, notes))
    rank = np.argsort(held.address, kind="stable")
    place = np.empty_like(rank)
    place[rank] = np.arange(len(rank))
    blocks = Blocks(**dict(blocks.columns()) | {"segment": place[owner].astype("i4")})
    blocks = blocks.rows(np.lexsort((blocks.address, blocks.segment)))
    held = held.rows(rank)
    notes += _crooked(held, blocks)
    return Snapshot(event=len(trace), time_ns=time_ns, segments=held, blocks=blocks)


def _blocks(
    segments: _SegmentRows, held: Segments, owner: Array, shared: tuple[StackReader, list[Note]]
) -> Blocks:
    reader, notes = shared
    rows = segments.blocks
    size = rows.integers("size", "i8")
    _believable(size, "block")
    words = rows.column("state", (str,))
    n_unknown = sum(word not in _STATES for word in words)
    text = f"{n_unknown} blocks in an unknown state count as free"
    notes += counted(NoteCode.UNKNOWN_STATE, n_unknown, text)
    state = np.array([_STATES.get(word, BlockState.INACTIVE) for word in words], dtype="u1")
    in_use = state != BlockState.INACTIVE
    requested, stack_id = _owners(rows, reader)
    _believable(requested, "requested_size of block")
    return Blocks(
        segment=owner.astype("i4"),
        address=_addresses(rows, size, held, owner),
        size=size,
        requested_size=np.where(in_use, np.where(requested < 0, size, requested), 0),
        state=state,
        stack_id=np.where(in_use, stack_id, 0).astype("i4"),
    )


def _owners(rows: Rows, reader: StackReader) -> tuple[Array, Array]:
    """Requested bytes (−1 where unknown) and stack of each block; torch < 2.0 stored both in ``history``."""
    last = [entries[0] if entries else {} for entries in rows.column("history", (list,), [])]
    if not any(last):
        return rows.integers("requested_size", "i8", -1), reader.column(rows)
    older = Rows(last, lambda i: f"block {i}: history[0]")
    real = older.integers("real_size", "i8", -1)
    given = rows.integers("requested_size", "i8", -1)
    stack_id, older_id = reader.column(rows), reader.column(older)
    return np.where(given < 0, real, given), np.where(stack_id == 0, older_id, stack_id)


def _addresses(rows: Rows, size: Array, held: Segments, owner: Array) -> Array:
    """The address of each block; torch 2.0 gives none: blocks follow one another in their segment."""
    before = np.cumsum(size) - size
    first = np.searchsorted(owner, np.arange(len(held)))
    in_segment = before - before[first[owner]] if len(before) else before
    computed: Array = held.address[owner] + in_segment.astype("u8")
    absent = -1 in rows.column("address", (int,), -1)
    return computed if absent else rows.integers("address", "u8")


def _crooked(held: Segments, blocks: Blocks) -> list[Note]:
    """Notes on segments that overlap or that blocks do not tile: only edited or damaged files have such."""
    end = held.address + held.size.astype("u8")
    n_overlaps = int(np.count_nonzero(end[:-1] > held.address[1:]))
    block_end = blocks.address + blocks.size.astype("u8")
    same = blocks.segment[1:] == blocks.segment[:-1]
    starts = np.flatnonzero(np.r_[True, ~same]) if len(blocks) else np.zeros(0, "i8")
    ends = np.r_[starts[1:], len(blocks)] - 1 if len(blocks) else starts
    tiled = np.zeros(len(held), dtype="?")
    at = blocks.segment[starts]
    tiled[at] = (blocks.address[starts] == held.address[at]) & (block_end[ends] == end[at])
    broken = np.flatnonzero(same & (block_end[:-1] != blocks.address[1:])) + 1
    tiled[blocks.segment[broken]] = False
    n_gappy = int(np.count_nonzero(~tiled))
    crooked = f"the blocks of {n_gappy} segments do not fill them exactly"
    return [
        *counted(NoteCode.OVERLAPPING, n_overlaps, f"{n_overlaps} segments overlap the next one"),
        *counted(NoteCode.CROOKED, n_gappy, crooked),
    ]


def _notes(found: list[DeviceHistory]) -> list[Note]:
    if any(len(history.trace) or len(history.final.segments) for history in found):
        return []
    return [Note(NoteCode.EMPTY, "the snapshot is empty: no memory was held and no event recorded")]
