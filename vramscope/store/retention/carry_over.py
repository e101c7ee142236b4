"""The information that must survive when a part of a trace is deleted.

That is the peaks between marks, the allocator's state after the last deleted event, and the labels and
holders of its blocks. It is exact: every analysis of later events finds the same state, labels and holders
as without the deletion.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from vramscope.allocator.levels import levels
from vramscope.allocator.lives import rows_among
from vramscope.allocator.replay import state_at
from vramscope.allocator.settings import Settings
from vramscope.model.codes import QUANTITIES
from vramscope.model.counters import Counters
from vramscope.model.holders import Holders
from vramscope.model.marks import Labels, MarkKind, Marks
from vramscope.model.past import StretchPeaks, most_of
from vramscope.model.snapshot import Snapshot
from vramscope.model.table import Array
from vramscope.model.trace import Action, Trace
from vramscope.steps.retained import drop_older_marks
from vramscope.store.batches import arrays, batch, write_compressed
from vramscope.store.integrity import SUMMARY, FileSum, Owner
from vramscope.store.read.streams import DeviceStreams
from vramscope.store.schema import PEAKS, STEPS, file_name

BOUNDARIES = (
    MarkKind.PHASE_BEGIN, MarkKind.PHASE_END, MarkKind.STEP, MarkKind.ENTER, MarkKind.EXIT, MarkKind.MARK,
)  # fmt: skip
"""The kinds of marks at which steps and phases may begin and end, by any rule."""

_ONLY_DETAIL = (
    MarkKind.MODULE, MarkKind.GC, MarkKind.THREAD, MarkKind.GAP, MarkKind.ANNOTATION, MarkKind.METADATA,
)  # fmt: skip
"""The kinds of marks that only explain allocations; they are useless once the allocations are deleted."""
MOST_MARKS = 100_000
"""Marks of some 12,000 steps: they are resolved in half a second, with 50 MB."""
MOST_SAMPLES = 500_000
"""Samples of 14 hours at ten per second."""
_SHARE = 1 / 16
"""The share of the cap for marks and peaks together, and again for samples."""
_LEAST_ROW_BYTES = 4
"""Compressed size of a row; a file with fewer bytes than the limit of rows takes is not opened."""


@dataclass(frozen=True, slots=True)
class CarriedState:
    """State and labels of one device after its last deleted event."""

    state: Snapshot = field(default_factory=Snapshot)
    """The allocator's state; its ``event`` is the number of events deleted so far."""
    labels: Labels = field(default_factory=Labels.of)
    """The labels of the blocks that are live then, moved to that instant."""
    holders: Holders = field(default_factory=Holders.of)
    """The last known paths to these blocks, moved to that instant."""


@dataclass(frozen=True, slots=True)
class DevicePart:
    """The events, marks, labels and holders of one device in one part; instants are as written."""

    trace: Trace
    marks: Marks
    labels: Labels
    holders: Holders = field(default_factory=Holders.of)


def compact_part(
    before: CarriedState, part: DevicePart, following: DevicePart
) -> tuple[CarriedState, StretchPeaks, Marks]:
    """Compact *part*: return the carried state after it, its peaks, and the marks that steps depend on.

    *before* is the state carried from the parts before. *following* is the next part: marks and labels may
    be written a little later than their events.
    """
    first, n_events = before.state.event, len(part.trace)
    initial = replace(before.state, event=0)
    state = state_at(part.trace, initial, n_events, Settings())
    state = replace(state, event=first + n_events, time_ns=state.time_ns or before.state.time_ns)
    labels = _labels(before, part, following, state)
    edges = [each.marks.event[np.isin(each.marks.kind, BOUNDARIES)] - first for each in (part, following)]
    peaks = _peaks(part.trace, initial, np.concatenate(edges))
    marks = _course(part.marks, state.event)
    holders = _holders(before, part, following, state)
    return CarriedState(state, labels, holders), replace(peaks, event=peaks.event + first), marks


def _peaks(trace: Trace, initial: Snapshot, edges: Array) -> StretchPeaks:
    """Return the peaks between *edges*; an instant with two marks or more gets a stretch of its own."""
    n_events = len(trace)
    edges = np.append(edges[(edges >= 0) & (edges <= n_events)], 0)
    distinct, count = np.unique(edges, return_counts=True)
    start = np.repeat(distinct, np.minimum(count, 2))
    end = np.append(start[1:], n_events)
    most = [most_of(level, start, end + 1) for level in levels(trace, initial)]
    return StretchPeaks(event=start.astype("i8"), **dict(zip(QUANTITIES, most, strict=True)))


def _course(marks: Marks, end: int) -> Marks:
    """Return *marks* without those that only explain allocations.

    The last mark of each module and that of a thread stay, moved to *end*: the last of these name those that
    run there, the others those that were called.
    """
    modules, threads = (
        np.flatnonzero((marks.kind == kind) & (marks.event <= end))
        for kind in (MarkKind.MODULE, MarkKind.THREAD)
    )
    newest = np.unique(marks.name[modules[::-1]], return_index=True)[1]
    last = modules[np.sort(len(modules) - 1 - newest)]
    kept = np.flatnonzero(~np.isin(marks.kind, _ONLY_DETAIL))
    found = marks.rows(np.concatenate([kept, last, threads[-1:]]))
    event = found.event.copy()
    event[len(kept) :] = end
    return replace(found, event=event)


def _labels(before: CarriedState, part: DevicePart, following: DevicePart, state: Snapshot) -> Labels:
    """Return the labels of blocks that are live at the end.

    The last one of several equal labels of a block.
    """
    late = following.labels.rows(following.labels.event < state.event)
    labels = Labels.joined(before.labels, part.labels, late)
    kept = labels.rows(_is_carried(labels, part.trace, before.state.event, state))
    content = np.stack([kept.address.astype("i8"), kept.category.astype("i8"), kept.name.astype("i8")])
    _, newest = np.unique(content[:, ::-1], axis=1, return_index=True)
    kept = kept.rows(np.sort(len(kept) - 1 - newest))
    return replace(kept, event=np.maximum(kept.event, state.event))


def _holders(before: CarriedState, part: DevicePart, following: DevicePart, state: Snapshot) -> Holders:
    """Return the last path to each block that is live at the end."""
    late = following.holders.rows(following.holders.event < state.event)
    holders = Holders.joined(before.holders, part.holders, late)
    kept = holders.rows(_is_carried(holders, part.trace, before.state.event, state))
    address, of = np.unique(kept.address, return_inverse=True)
    newest = np.zeros(len(address), "i8")
    np.maximum.at(newest, of, kept.event)
    kept = kept.rows(kept.event == newest[of])
    return replace(kept, event=np.maximum(kept.event, state.event))


def _is_carried(table: Labels | Holders, trace: Trace, first: int, state: Snapshot) -> Array:
    """Return whether each row is about a block that is live at the end, or about a later moment."""
    events = np.flatnonzero((trace.action == Action.ALLOC) & (trace.block_size > 0))[::-1]
    address, at = np.unique(trace.address[events], return_index=True)
    handed_out = np.append(events[at] + first, -1)[rows_among(table.address, address)]
    in_use = state.blocks.address[state.blocks.in_use]
    return (table.event > state.event) | ((handed_out < table.event) & np.isin(table.address, in_use))


def compact_summary(
    new: tuple[Path, Owner], device: int, n_events: int, max_bytes: int
) -> dict[str, FileSum]:
    """Shorten a summary that is not valid yet if it is too long for readers or for the cap.

    *new* is its directory and the trace it belongs to, *n_events* the number of deleted events. Returns the
    sums of the files that were written again. Raises OSError.
    """
    home, owner = new
    sums: dict[str, FileSum] = {}
    course = sum(_size(home, stream, device) for stream in ("marks", PEAKS))
    samples = _size(home, "samples", device)
    if not n_events or max(course, samples) <= min(max_bytes * _SHARE, _LEAST_ROW_BYTES * MOST_MARKS):
        return sums
    streams = DeviceStreams(home, [home], device)
    streams.refresh()
    marks, counters = streams.table("marks"), streams.table("samples")
    if len(marks) > MOST_MARKS or course > max_bytes * _SHARE:
        known = marks, *streams.past()
        found = drop_older_marks(known, n_events)
        for stream, table in zip(("marks", PEAKS, STEPS), found or (), strict=False):
            sums |= _replaced((home, owner), file_name(stream, device), batch(stream, arrays(table)))
    if len(counters) > MOST_SAMPLES or samples > max_bytes * _SHARE:
        rows = batch("samples", arrays(downsample_counters(counters)))
        sums |= _replaced((home, owner), file_name("samples", device), rows)
    return sums


def downsample_counters(counters: Counters) -> Counters:
    """Drop every second sample of the older half: of two neighbors the one with more bytes stays."""
    n_pairs = len(counters) // 4
    level = np.maximum(counters.reserved_bytes, counters.device_used_bytes)[: 2 * n_pairs]
    most = level.reshape(n_pairs, 2).argmax(axis=1) + 2 * np.arange(n_pairs)
    rows = np.concatenate([most, np.arange(2 * n_pairs, len(counters))])
    # What was highest since a sample that goes was highest since the one before it as well.
    begins = np.append(0, rows[:-1] + 1)[: len(rows)]
    highest = {
        name: np.maximum.reduceat(column, begins)
        for name, column in counters.columns()
        if name.endswith("_highest_bytes") and len(rows)
    }
    return replace(counters.rows(rows), **highest)


def _size(home: Path, stream: str, device: int) -> int:
    path = home / file_name(stream, device)
    return path.stat().st_size if path.exists() else 0


def _replaced(new: tuple[Path, Owner], name: str, rows: pa.RecordBatch) -> dict[str, FileSum]:
    home, owner = new
    path = home / name
    path.unlink(missing_ok=True)
    return {name: write_compressed(path, [rows], replace(owner, file=f"{SUMMARY}/{name}"))}
