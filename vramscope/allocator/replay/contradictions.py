"""Finds totals of a recording that contradict each other, and the event from which on they do.

A complete recording has none. Files that were damaged without a checksum to show it, and a source that missed
events, lead to contradictions. One pass over the events: 0.1 s per million.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from vramscope.allocator.levels import levels, levels_of_state
from vramscope.model.codes import QUANTITIES, NoteCode
from vramscope.model.counters import UNKNOWN, Counters
from vramscope.model.marks import Note
from vramscope.model.recording import Recording
from vramscope.model.table import Array
from vramscope.steps.unrecorded import unrecorded
from vramscope.units import format_bytes

_NEAR = (64, 4096)
"""Events before and after a sample's time: clocks agree to some microseconds, but threads do not wait."""
_FEWEST_SAMPLES = 3
"""Number of samples in a row that must disagree: a single one may fall between two events."""
_MOST_SAMPLES = 1000
"""Number of samples that are checked, from the last one back to one that agrees; in a complete recording that
is the last.
"""

Levels = tuple[NDArray[np.int64], ...]


def contradictions(recording: Recording, known: Levels | None = None) -> list[Note]:
    """Notes on what cannot be true of *recording*, each kind once, with the event at which it begins.

    The levels may be *known* already: they take nearly all of the time.
    """
    if not len(recording.trace):
        return []
    found = levels(recording.trace, recording.initial) if known is None else known
    return [
        *_negative(found),
        *_above(found, has_reserved=recording.has_reserved),
        *_other_end(recording, found),
        *_other_counters(recording, found),
    ]


def _negative(found: Levels) -> Iterator[Note]:
    for name, level in zip(QUANTITIES, found, strict=True):
        if int(level.min()) < 0:
            event = int((level < 0).argmax())
            lowest = format_bytes(int(level.min()))
            text = (
                f"{name} bytes fall below zero at event {event:,} (down to {lowest}): "
                "events or the state before them are missing or changed, and totals are wrong from there on"
            )
            yield Note(NoteCode.NEGATIVE_TOTAL, text, event)
            return


def _above(found: Levels, *, has_reserved: bool) -> Iterator[Note]:
    _, allocated, active, reserved = found
    pairs = [
        (NoteCode.ALLOCATED_ABOVE_ACTIVE, allocated, active),
        (NoteCode.ACTIVE_ABOVE_RESERVED, active, reserved),
    ]
    for code, lower, upper in pairs if has_reserved else pairs[:1]:
        is_above = lower > upper
        if is_above.any():
            event = int(is_above.argmax())
            name, upper_name = code.split("_above_")
            excess = format_bytes(int((lower - upper).max()))
            text = (
                f"{name} bytes exceed {upper_name} bytes from event {event:,} on (by up to {excess}): "
                "events or the state before them are missing or changed, and totals are wrong from there on"
            )
            yield Note(code, text, event)
            return


def _other_end(recording: Recording, found: Levels) -> Iterator[Note]:
    """Note where the end that follows from the events differs from the end that the source reported."""
    if recording.final is None:
        return
    reported = levels_of_state(recording.final)
    # torch before 2.1 reports no requests: they are not compared.
    for name, level, truth in list(zip(QUANTITIES, found, reported, strict=False))[1:]:
        if int(level[-1]) != truth:
            text = (
                f"{name} bytes at the end (event {len(level) - 1:,}) are {format_bytes(int(level[-1]))} by "
                f"the events and {format_bytes(truth)} by the reported state: events are missing or changed"
            )
            yield Note(NoteCode.END_DIFFERS, text, int(level[-1]) - truth)
            return


def _other_counters(recording: Recording, found: Levels) -> Iterator[Note]:
    """Note from which event on torch's own counters differ from the sums of the events."""
    near, first = _instants_of_samples(recording), None
    known = {"allocated_bytes": found[1], "reserved_bytes": found[3]}
    n_differ = 0
    for row in range(len(near) - 1, max(len(near) - 1 - _MOST_SAMPLES, -1), -1):
        if near[row] == UNKNOWN:
            continue
        if instant_of_sample(recording.counters, row, int(near[row]), known) != UNKNOWN:
            break
        first, n_differ = row, n_differ + 1
    if first is None or n_differ < _FEWEST_SAMPLES:
        return
    event = int(near[first])
    reported = int(recording.counters.allocated_bytes[first])
    text = (
        f"torch's counters disagree with the events from about event {event:,} on ({n_differ:,} samples; "
        f"{format_bytes(reported)} allocated by torch, {format_bytes(int(found[1][event]))} by the events): "
        "events are missing or changed"
    )
    yield Note(NoteCode.COUNTERS_DIFFER, text, event)


def _instants_of_samples(recording: Recording) -> NDArray[np.int64]:
    """The instant near each sample; UNKNOWN where no comparison is possible."""
    counters, times = recording.counters, recording.trace.time_ns
    if not len(counters) or not recording.trace.has_clock:
        return np.zeros(0, "i8")
    near = np.searchsorted(np.maximum.accumulate(times), counters.time_ns, side="right")
    is_of_moment = (counters.reserved_drift_bytes == 0) & (counters.allocated_bytes >= 0)
    # Between steps that have events the events say nothing.
    is_of_moment &= ~unrecorded(recording).overlap(counters.time_ns, counters.time_ns + 1)
    # The last events of a killed process may be lost where its last samples are not.
    is_within = (counters.time_ns <= times.max()) & (counters.time_ns >= recording.initial.time_ns)
    return np.where(is_of_moment & (counters.reserved_bytes >= 0) & is_within, near, UNKNOWN)


def instant_of_sample(counters: Counters, row: int, at: int, known: Mapping[str, Array]) -> int:
    """The instant nearest to *at* at which all levels are those of a sample; UNKNOWN where none near it is.

    *known* has the levels by the name of their counter. One that the sample lacks is not compared.
    """
    sampled = {name: int(getattr(counters, name)[row]) for name in known}
    for reach in _NEAR if sampled["reserved_bytes"] >= 0 else ():
        first = max(at - reach, 0)
        near = ((level[first : at + reach + 1], sampled[name]) for name, level in known.items())
        fits = first + np.flatnonzero(np.all([part == n for part, n in near if n >= 0], axis=0))
        if len(fits):
            return int(fits[np.abs(fits - at).argmin()])
    return UNKNOWN
