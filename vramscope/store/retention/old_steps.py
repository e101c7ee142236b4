"""Reduces the oldest steps of a summary, whose events are deleted, to their peaks.

Reading a trace finds steps from marks and takes some µs per mark, so a run of weeks could not be opened any
more. Therefore the older half of the marks is replaced by finished steps if the remaining marks lead to the
same later steps as all marks do. That is tested; if it fails, the marks stay.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vramscope.model.counters import Counters
from vramscope.model.marks import MarkKind, Marks, Phases, Steps
from vramscope.model.past import StretchPeaks, SummarizedSteps
from vramscope.model.program import resolve
from vramscope.store.batches import arrays, batch, write_compressed
from vramscope.store.integrity import SUMMARY, FileSum, Owner
from vramscope.store.read.retained_timeline import with_summarized
from vramscope.store.read.streams import DeviceStreams
from vramscope.store.schema import PEAKS, STEPS, file_name

MOST_MARKS = 100_000
"""Marks of some 12,000 steps: they are resolved in half a second, with 50 MB."""
MOST_SAMPLES = 500_000
"""Samples of 14 hours at ten per second."""
_SHARE = 1 / 16
"""The share of the cap for marks and peaks together, and again for samples."""
_LEAST_ROW_BYTES = 4
"""Compressed size of a row; a file with fewer bytes than the limit of rows takes is not opened."""
_ATTEMPTS = 4
_ENDS = (MarkKind.PHASE_END, MarkKind.STEP, MarkKind.EXIT)

_Timeline = tuple[Marks, StretchPeaks, SummarizedSteps]


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
        known = marks, streams.stretch_peaks(), streams.summarized_steps()
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
    return counters.rows(np.concatenate([most, np.arange(2 * n_pairs, len(counters))]))


def _size(home: Path, stream: str, device: int) -> int:
    path = home / file_name(stream, device)
    return path.stat().st_size if path.exists() else 0


def _replaced(new: tuple[Path, Owner], name: str, rows: pa.RecordBatch) -> dict[str, FileSum]:
    home, owner = new
    path = home / name
    path.unlink(missing_ok=True)
    return {name: write_compressed(path, [rows], replace(owner, file=f"{SUMMARY}/{name}"))}


def drop_older_marks(known: _Timeline, n_events: int) -> _Timeline | None:
    """Return about half of the marks, the stretches after the cut and the steps before it.

    Returns None if no cut is safe.
    """
    marks, peaks, summarized = known
    end_ns = int(marks.time_ns[-1]) if len(marks) else 0
    steps, phases = with_summarized(summarized, *resolve(marks, n_events, end_ns))
    # The last steps may continue after the deleted events.
    middle = (len(summarized) + len(steps)) // 2
    for cut in range(middle, min(middle + _ATTEMPTS, len(steps) - 1)):
        if cut <= len(summarized) or steps.end_event[cut - 1] > n_events:
            continue
        kept = marks.rows(marks_needed_after(marks, steps, phases, cut))
        older = _summarized(known, steps, cut, n_events)
        again = with_summarized(older, *resolve(kept, n_events, end_ns))
        if _is_same((steps, phases), again, cut):
            first = int(np.searchsorted(peaks.event, steps.start_event[cut]))
            return kept, peaks.rows(slice(first, None)), older
    return None


def marks_needed_after(marks: Marks, steps: Steps, phases: Phases, cut: int) -> NDArray[np.bool_]:
    """Return the mask of the marks that the step *cut* and later steps need.

    These are their own marks and those of phases and blocks that are open when the step begins.
    """
    start_ns = steps.start_ns[cut]
    is_later = marks.time_ns > start_ns
    is_later |= (marks.time_ns == start_ns) & ~np.isin(marks.kind, _ENDS)
    is_open = (phases.start_ns <= start_ns) & (phases.end_ns > start_ns)
    begins = np.isin(marks.time_ns, phases.start_ns[is_open]) & (marks.kind == MarkKind.PHASE_BEGIN)
    names_pool = np.isin(marks.kind, (MarkKind.GRAPH_POOL, MarkKind.MEM_POOL))
    found: NDArray[np.bool_] = is_later | begins | names_pool | _entered(marks, start_ns)
    return found


def _entered(marks: Marks, before_ns: int) -> NDArray[np.bool_]:
    """Return the mask of the enter marks of blocks that are still open at *before_ns*."""
    is_open = np.zeros(len(marks), dtype="?")
    stack: list[int] = []
    for row in np.flatnonzero(np.isin(marks.kind, (MarkKind.ENTER, MarkKind.EXIT))).tolist():
        if marks.time_ns[row] > before_ns:
            break
        if marks.kind[row] == MarkKind.ENTER:
            stack.append(row)
        elif stack:
            stack.pop()
    is_open[stack] = True
    return is_open


def _summarized(known: _Timeline, steps: Steps, cut: int, n_events: int) -> SummarizedSteps:
    _, peaks, before = known
    new = steps.rows(slice(len(before), cut))
    columns = {name: getattr(new, name) for name in ("start_event", "end_event", "start_ns", "end_ns")}
    columns |= peaks.between(new.start_event, new.end_event, n_events)
    joined = (steps.start_event[1:] == steps.end_event[:-1]) & (steps.start_ns[1:] == steps.end_ns[:-1])
    columns["is_joined"] = joined[len(before) : cut]
    return SummarizedSteps(
        **{name: np.concatenate([getattr(before, name), columns[name]]) for name in SummarizedSteps.DTYPES}
    )


def _is_same(before: tuple[Steps, Phases], after: tuple[Steps, Phases], cut: int) -> bool:
    """Return whether all steps, and all phases from the step *cut* on, are found again."""
    (steps, phases), (found, found_phases) = before, after
    if len(steps) != len(found):
        return False
    wanted = phases.rows((phases.step >= cut) | (phases.end_ns > steps.start_ns[cut]))
    there = found_phases.rows((found_phases.step >= cut) | (found_phases.end_ns > steps.start_ns[cut]))
    # A phase that began in an earlier step no longer has the index of that step.
    wanted = replace(wanted, step=np.where(wanted.step < cut, -1, wanted.step))
    there = replace(there, step=np.where(there.step < cut, -1, there.step))
    names = [name for name in Phases.DTYPES if name != "name"]
    return all(np.array_equal(getattr(steps, name), getattr(found, name)) for name in Steps.DTYPES) and (
        len(wanted) == len(there)
        and all(np.array_equal(getattr(wanted, name), getattr(there, name)) for name in names)
    )
