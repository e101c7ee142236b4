"""Shortens a summary, whose events are deleted, where it is too long for readers or for the cap."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from vramscope.model.counters import Counters
from vramscope.steps.finished import drop_older_marks
from vramscope.store.batches import arrays, batch, write_compressed
from vramscope.store.integrity import SUMMARY, FileSum, Owner
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
