"""Forecasts the step at which a run that grows reaches the limit of its device."""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from vramscope.analysis import asking
from vramscope.analysis.forecast.trend import Trend, trend
from vramscope.analysis.leaks import leaks
from vramscope.analysis.pace import StepPace, pace, pace_of_rows
from vramscope.analysis.recorded_settings import last_limit, recorded_limit
from vramscope.analysis.sampled_peaks import sampled_peaks
from vramscope.analysis.step_peaks import IntervalPeaks, step_peaks
from vramscope.analysis.timeline import timeline
from vramscope.analysis.verdicts.missing import Part, missing_of_notes, missing_parts
from vramscope.model.device import Device, Process
from vramscope.model.marks import Steps
from vramscope.model.rank_summary import DeviceSummary, StepRows
from vramscope.model.recording import Outcome, Recording
from vramscope.model.table import Array
from vramscope.model.trace import Action
from vramscope.steps.unrecorded import unrecorded
from vramscope.units import format_bytes, format_count, format_rough_duration

_LEAST_STEPS = 60
"""Steps with growth in their later half, where no line explains it: a buffer that fills up looks the same."""
_LEAST_STEADY_STEPS = 20
_MOST_AHEAD = 20.0
"""Steps ahead of the last one, as a multiple of those that the trend rests on."""
_WIDEST = 5.0
"""The latest step may be this many times as far ahead as the earliest one."""
_CONTEXT_BYTES = 1 << 30
"""What CUDA and its libraries may take beside the allocator, where the driver was not asked."""
_SEGMENT_BYTES = 20 << 20
"""A last segment of this size may not fit, although its first block would."""
_NEEDED = (Part.EVENTS, Part.CERTAINTY, Part.STEPS, Part.END)


class Reservable(NamedTuple):
    """The bytes that torch's allocator may reserve."""

    limit_bytes: int
    doubt_bytes: int = 0
    """How much less it may be."""


class Peaks(NamedTuple):
    """The peaks that an outlook rests on."""

    steps: StepRows
    """The peaks of each step; the last step's may still rise."""
    rests_bytes: Array | None = None
    """What each step leaves allocated, if that grows; otherwise the peaks have the trend."""
    outside_bytes: float = 0.0
    """How far the peaks outside of steps, as in evaluations, lie above those of the steps."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """When the limit is reached, if the run goes on as it does."""

    step: int
    """The step whose peak probably does not fit."""
    step_range: tuple[int, int]
    """The earliest and the latest such step, both included."""
    n_bytes: int
    """The most that nine steps in ten allocate now, by the trend."""
    bytes_per_step: int
    limit_bytes: int
    """The bytes that torch's allocator may reserve."""
    seconds: float | None = None
    """The time until then, at the pace of the last steps; None where that is unknown or the run has ended."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What lies ahead of a run; all None where that cannot be known."""

    forecast: Forecast | None = None
    """When the limit is reached; None where it is not within the steps left, and where it is not known."""
    steady_steps: int | None = None
    """The number of steps left, where no limit is in sight over them; else None."""
    limit_bytes: int | None = None

    @property
    def text(self) -> str:
        """The outlook as a sentence without its first capital; '' where nothing is known."""
        if self.forecast is not None:
            limit = format_bytes(self.forecast.limit_bytes)
            return f"at this rate the limit of {limit} is reached {_near(self.forecast)}"
        if self.steady_steps is None:
            return ""
        return f"no limit in sight over the {format_count(self.steady_steps, 'step')} left"

    @property
    def short(self) -> str:
        """The same in a few words, for a header; '' where nothing is known."""
        if self.forecast is not None:
            return f"limit {_near(self.forecast)}"
        return "" if self.steady_steps is None else "no limit in sight"


NOTHING_KNOWN = Outlook()


def forecast(recording: Recording) -> Outlook:
    """Forecast the step at which the limit is reached; 1 s per million events."""
    counters = recording.counters
    known = (counters.device_used_bytes >= 0) & (counters.reserved_bytes >= 0)
    beside = (counters.device_used_bytes - counters.reserved_bytes)[known][-_LEAST_STEPS:]
    room = _room(recording.device, recorded_limit(recording), int(np.median(beside)) if len(beside) else None)
    lacks = [
        each
        for each in missing_parts(recording)
        if each.part in _NEEDED and each.code != Outcome.RUNNING.value
    ]
    is_full = bool((recording.trace.action == Action.OOM).any())
    if room is None or lacks or is_full:
        return NOTHING_KNOWN
    found = leaks(recording)
    is_explained = bool(found.leaks or found.batch is not None)
    has_lines = bool(len(recording.trace))
    is_live = recording.outcome is Outcome.RUNNING
    ahead = outlook_of(
        Peaks(_levels(recording), _rests(recording) if found.leaks else None, _outside_spike(recording)),
        room,
        total_steps=recording.process.total_steps,
        least_steps=0 if is_explained else _LEAST_STEPS,
        far=pace(recording.steps) if is_live else None,
    )
    # Growth whose lines are known to be bounded, or not to grow, is no growth to count on.
    return NOTHING_KNOWN if ahead.forecast and has_lines and not is_explained else ahead


def forecast_of_summary(device: DeviceSummary, process: Process) -> Outlook:
    """Return the outlook that a summary allows of a run that goes on, in 1 ms.

    Without lines of code, growth must have lasted for longer.
    """
    room = room_of_summary(device)
    if (
        room is None
        or not device.is_exact
        or device.n_failed
        or any(each.part in _NEEDED for each in missing_of_notes(device.notes))
    ):
        return NOTHING_KNOWN
    far = pace_of_rows(device.steps)
    return outlook_of(Peaks(device.steps), room, total_steps=process.total_steps, far=far)


def growth_of_summary(device: DeviceSummary) -> int | None:
    """Return by how many bytes the peaks of steps grow in each; None where they do not, or not surely."""
    rows = device.steps.rows(device.steps.allocated >= 0)
    goes_on = trend(rows.step + rows.n_steps - 1, rows.allocated) if device.is_exact else None
    return round(goes_on.bytes_per_step) if goes_on is not None and goes_on.is_growing else None


def outlook_of(
    known: Peaks,
    room: Reservable,
    *,
    total_steps: int = 0,
    least_steps: int = _LEAST_STEPS,
    far: StepPace | None = None,
) -> Outlook:
    """Return the outlook of a run of which only the peaks of its steps are known.

    Parameters
    ----------
    known
        The peaks so far.
    room
        What may be reserved.
    total_steps
        The number of steps that the program plans; 0 where it is unknown.
    least_steps
        The fewest steps; growth must have lasted over the later half of them.
    far
        The pace of a run that goes on; None for one that has ended.
    """
    levels, rests = known.steps, known.rests_bytes
    is_known = levels.allocated >= 0
    rows, rests = levels.rows(is_known), None if rests is None else rests[is_known]
    goes_on = trend(rows.step + rows.n_steps - 1, rows.allocated, rests)
    if goes_on is None or not int(rows.reserved.max()) <= room.limit_bytes:
        return NOTHING_KNOWN
    last = int(levels.step[-1] + levels.n_steps[-1] - 1)
    left = max(total_steps - 1 - last, 0)
    gap = float(np.median((rows.reserved - rows.allocated)[len(rows) // 2 :]))
    most_left = room.limit_bytes - goes_on.level_bytes
    kept_free = max(gap, min(_SEGMENT_BYTES, room.limit_bytes / 8))
    least_left = most_left - kept_free - known.outside_bytes - room.doubt_bytes
    widest, gap_bytes_per_step = _widening(rows)
    widens = replace(goes_on, bytes_per_step=goes_on.bytes_per_step + gap_bytes_per_step)
    soonest = last + math.floor(min(widens.earliest(least_left - max(widest - gap, 0)), 1e15))
    if len(rows) >= _LEAST_STEADY_STEPS and left and soonest > last + left:
        return Outlook(steady_steps=left, limit_bytes=room.limit_bytes)
    if not goes_on.is_growing or 2 * goes_on.half_steps < least_steps / 2:
        return NOTHING_KNOWN
    found = _forecast(goes_on, (least_left, most_left), (last, soonest), room, far)
    return NOTHING_KNOWN if found is None else Outlook(found, limit_bytes=room.limit_bytes)


def _widening(rows: StepRows) -> tuple[float, float]:
    """Return the widest gap between allocated and reserved memory of late, and how far each step widens it.

    Blocks that do not fill their segments do (11 of 1.7 MiB leave 1.3 of 20 MiB unused), and growing batches.
    """
    gap, half = rows.reserved - rows.allocated, len(rows) // 2
    widest = float(gap[half:].max())
    per_step = (widest - float(gap[:half].max())) / float(rows.step[-1] - rows.step[half - 1])
    return (widest, per_step) if per_step > 0 else (0.0, 0.0)


def _forecast(
    goes_on: Trend, left: tuple[float, float], begins: tuple[int, int], room: Reservable, far: StepPace | None
) -> Forecast | None:
    """Forecast from the bytes *left* between the trend and the limit: at least and at most."""
    last, soonest = begins
    latest = goes_on.latest(left[1])
    ahead = max(soonest - last, 1)
    if latest > min(_MOST_AHEAD * 2 * goes_on.half_steps, max(_WIDEST * ahead, goes_on.half_steps)):
        return None
    low, high = max(soonest, last + 1), max(last + math.ceil(latest) + 1, last + 1)
    likely = last + round(goes_on.likely(sum(left) / 2))
    step = min(max(likely, low), high)
    seconds = None if far is None or not far.steps_per_s else (step - last) / far.steps_per_s
    return Forecast(
        step,
        (low, high),
        round(goes_on.level_bytes + max(goes_on.usual_spike_bytes, 0)),
        round(goes_on.bytes_per_step),
        room.limit_bytes,
        seconds,
    )


def _near(found: Forecast) -> str:
    low, high = found.step_range
    time = "" if found.seconds is None else f", in about {format_rough_duration(found.seconds)}"
    steps = f"step {found.step:,} ({low:,} to {high:,})" if low < high else f"step {found.step:,}"
    return f"near {steps}{time}"


def room_of_summary(device: DeviceSummary) -> Reservable | None:
    """Return the bytes that torch may reserve on the device of a summary; None where that is unknown."""
    used, reserved = device.samples.get("device_used_bytes"), device.peak.get("reserved")
    beside_torch = None if used is None or reserved is None else max(used - reserved.n_bytes, 0)
    return _room(device.device, last_limit(device.notes), beside_torch)


def _room(device: Device, own: int | None, beside_bytes: int | None) -> Reservable | None:
    """Return what torch may reserve: the device without what others use, or less where the process says so.

    *own* is the process's limit, and *beside_bytes* what the driver counts beside torch; None where unknown.
    """
    total = device.total_bytes
    is_asked = beside_bytes is not None or device.kind != "cuda"
    rest = Reservable(total - (beside_bytes or 0)) if is_asked else Reservable(total, _CONTEXT_BYTES)
    if not total:
        return None if own is None else Reservable(own)
    return rest if own is None or own >= rest.limit_bytes else Reservable(own)


def _levels(recording: Recording) -> StepRows:
    """Return the peaks of all steps; of a recording without events, as far as the samples have them."""
    parts: list[tuple[Steps, Any]]
    if len(recording.trace):
        found, past = step_peaks(recording), recording.past.steps
        parts = [(past, found.past_per_step), (recording.steps, found.per_step)]
    else:
        sampled = sampled_peaks(recording)
        parts = [(recording.steps, sampled.per_step)] if len(sampled.per_step) else []
    tables = [StepRows.of_steps(steps, peaks.allocated_bytes, peaks.reserved_bytes) for steps, peaks in parts]
    return StepRows.of(
        **{
            name: np.concatenate([getattr(rows, name) for rows in tables]) if tables else []
            for name in StepRows.DTYPES
        }
    )


def _rests(recording: Recording) -> Array | None:
    """Return the bytes allocated at the end of each step; None where some steps have no events."""
    if len(recording.past.steps) or len(unrecorded(recording)):
        return None
    allocated = timeline(recording).allocated_bytes
    return allocated[np.minimum(recording.steps.end_event, len(allocated) - 1)]


def _outside_spike(recording: Recording) -> float:
    """Return how far the peaks between steps, as in evaluations, lie above those of the step before."""
    if not len(recording.trace) or not len(recording.steps):
        return 0.0
    found = step_peaks(recording)
    outside: IntervalPeaks = found.outside
    before = np.searchsorted(recording.steps.end_event, outside.start_event, side="right") - 1
    after = before >= 0
    above = outside.allocated_bytes[after] - found.per_step.allocated_bytes[before[after]]
    return max(float(above.max(initial=0)), 0.0)


ANALYSIS = asking("When does the run reach the limit of its device?", forecast)
