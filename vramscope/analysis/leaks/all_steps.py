"""Corrects what grows in the steps that have events by what torch counted in all steps.

With ``record(every=...)`` a line grows in the steps with events where it may not in those between. A batch
whose length comes again every eleven steps is longer in each eighth than in the one before: what the levels
and peaks of all steps deny is no growth.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vramscope.analysis.leaks.growth import LEAST_LEVELS, are_enough, growth, median_slope, rounds, window
from vramscope.analysis.leaks.iterations import steps_with_events
from vramscope.analysis.leaks.leak import Leak
from vramscope.analysis.lifetimes import lifetimes
from vramscope.analysis.step_peaks import step_peaks
from vramscope.analysis.timeline import timeline
from vramscope.model.recording import Recording
from vramscope.model.table import Array
from vramscope.units import format_bytes

if TYPE_CHECKING:
    from vramscope.analysis.leaks import Leaks

_MOST_ABOVE_LEVEL = 1.1
_MOST_LEVELS = 320
_RATES_OF_LEVELS = ("cache_bytes_per_step", "pool_bytes_per_step", "outside_bytes_per_step")


def of_all_steps(recording: Recording, found: "Leaks") -> "Leaks":
    """Return *found*, which the steps that have events say, with the rates and the growth of all steps.

    Where the level itself grows less than the lines in these steps, the steps between keep less: it counts.
    """
    steps, at = steps_with_events(recording), found.iteration_boundaries
    row, first = np.minimum(np.searchsorted(steps.end_event, at), len(steps) - 1), window(len(at))
    number = steps.index[row]
    n_steps, level = max(int(number[-1] - number[first]), 1), timeline(recording).allocated_bytes[at]
    apart, rise = n_steps / max(len(at) - 1 - first, 1), float(level[-1] - level[first]) / n_steps
    rise = _rise_of_all(recording, int(number[first]), rise)
    blocks = lifetimes(recording)

    def placed(leak: Leak, rate: float) -> Leak:
        begin, share = int(steps.index[min(leak.first_step, len(steps) - 1)]), rate / leak.bytes_per_step
        lines = tuple(replace(line, bytes_per_step=line.bytes_per_step * share) for line in leak.lines)
        n = int(number[-1]) - begin + 1
        return replace(leak, first_step=begin, n_steps=n, bytes_per_step=rate, lines=lines)

    def gets_longer(leak: Leak) -> bool:
        """All of it is of the last step: the blocks before it are gone."""
        last = leak.rows[blocks.alloc_event[leak.rows] > at[-2]]
        return bool(blocks.block_size[last].sum() >= leak.level_bytes[-1])

    def of_lines(leaks: tuple[Leak, ...]) -> tuple[Leak, ...]:
        longer = [leak for leak in leaks if gets_longer(leak)]
        kept = [(leak, leak.bytes_per_step) for leak in leaks if not any(leak is one for one in longer)]
        for leak in longer:  # by what it gained since the last step with events
            missing, rate = rise - sum(each for _, each in kept), leak.bytes_per_step / apart
            kept += [(leak, rate)] if abs(missing - rate) < abs(missing) else []
        total = sum(rate for _, rate in kept)
        share = rise / total if total > _MOST_ABOVE_LEVEL * rise else 1.0
        kept.sort(key=lambda each: -each[1])
        return tuple(placed(leak, rate * share) for leak, rate in kept) if rise > 0 else ()

    by_line: dict[str, Any] = {
        name: of_lines(getattr(found, name)) for name in ("leaks", "little", "filling")
    }
    rates = {name: getattr(found, name) / apart for name in _RATES_OF_LEVELS}
    batch, peaks = found.batch, step_peaks(recording).per_step.allocated_bytes
    if batch is not None:
        batch = placed(batch, batch.bytes_per_step / apart) if growth(peaks) is not None else None
    return replace(found, batch=batch, **by_line, **rates)


def _rise_of_all(recording: Recording, first: int, rise: float) -> float:
    """Return by how much the level at the ends of all steps from *first* on grows, by torch's counters.

    It is the median over pairs of steps; *rise* where too few of these levels are recorded.
    """
    number, level = levels_by_counters(recording)
    number, level = number[number >= first], level[number >= first]
    stride = -(-len(number) // _MOST_LEVELS)
    if len(number) < LEAST_LEVELS:
        return rise
    number, level = number[::stride], level[::stride]
    return median_slope(number, level)


def rise_by_counters(recording: Recording) -> int:
    """Return the bytes a step by which the level rises, steadily or in rounds, by counters; else 0."""
    number, level = levels_by_counters(recording)
    at = rounds(level)[1:]  # after each rise: between two of them are whole rounds
    if are_enough(at):
        return int((level[at[-1]] - level[at[0]]) / (number[at[-1]] - number[at[0]]))
    grows = growth(level)
    if grows is None:
        return 0
    # What came to stay between the first and the last level is certain; the slope is a median.
    whole = (level[-1] - level[0]) / (number[-1] - number[0])
    return int(max(min(grows.bytes_per_step, whole), 0))


def flat_by_counters(recording: Recording) -> str:
    """Return the levels after two steps between which they did not rise, by counters; '' where they did."""
    number, level = levels_by_counters(recording)
    if len(level) < LEAST_LEVELS or level[-1] > level[window(len(level))] or rise_by_counters(recording):
        return ""
    first = int(np.argmax(level >= level[-1]))
    before, now = format_bytes(int(level[first])), format_bytes(int(level[-1]))
    then = "and" if now == before else f"and {now}"
    return f"{before} after step {number[first]} {then} after step {number[-1]}"


def levels_by_counters(recording: Recording) -> tuple[Array, Array]:
    """Return the numbers of the steps at whose ends torch's counters were read, and the allocated bytes."""
    steps, counters = recording.steps, recording.counters
    row = np.searchsorted(counters.time_ns, steps.end_ns)
    known = (np.append(counters.time_ns, -1)[row] == steps.end_ns) & (
        np.append(counters.allocated_bytes, -1)[row] >= 0
    )
    return steps.index[known], counters.allocated_bytes[row[known]]
