"""Computes what is compared: each group's own peak in each interval, or samples where no events are."""

import numpy as np

from vramscope.analysis.lifetimes import Allocations, levels_by_group
from vramscope.analysis.sampled_peaks import sampled_peaks
from vramscope.model.counters import Counters
from vramscope.model.past import most_of
from vramscope.model.recording import Recording
from vramscope.model.table import Array


def group_peaks(allocations: Allocations, group: Array, n_groups: int, start: Array, end: Array) -> Array:
    """The maximum of each group over the instants *start* to *end*, both included.

    A group's peak is its own: the peaks of several groups need not be at the same instant, so their sum means
    nothing.

    *group* is that of each allocation, from 0 on. Returns bytes, shape (intervals, groups).
    """
    owner, instant, level = levels_by_group(allocations, group, n_groups)
    span = int(max(end.max(initial=0), instant.max(initial=0))) + 1
    groups = np.arange(n_groups)[None, :]
    moment = owner.astype("i8") * span + instant
    first = np.searchsorted(moment, groups * span + start[:, None], side="right")
    last = np.searchsorted(moment, groups * span + end[:, None], side="right")
    # The level at the start, which the previous change left, and that of all changes within.
    entry = level[first - 1]
    return np.maximum(entry, most_of(level, first.ravel(), last.ravel()).reshape(first.shape))


_LEVELS = ("device_used_bytes", "process_used_bytes")


def has_samples_alone(recording: Recording) -> bool:
    """Return whether a recording has samples and neither an event nor a block."""
    return bool(len(recording.counters)) and not len(recording.trace) and not len(recording.initial.segments)


def highest_pairs(before: Counters, after: Counters) -> dict[str, tuple[int, int]]:
    """Return the highest bytes of each series that both have."""
    pairs = {
        name.removesuffix("_bytes").replace("_", " "): (
            int(column.max(initial=-1)),
            int(getattr(after, name).max(initial=-1)),
        )
        for name, column in before.columns()
        if name.endswith("_bytes")
    }
    return {name: pair for name, pair in pairs.items() if min(pair) >= 0}


def highest_level(recording: Recording) -> int:
    """Return the highest bytes of what was sampled: allocated, else reserved, else as the driver counts."""
    found = sampled_peaks(recording)
    levels = [found.allocated_bytes, found.reserved_bytes]
    levels += [int(np.max(getattr(recording.counters, name), initial=-1)) for name in _LEVELS]
    return next((level for level in levels if level >= 0), 0)


def step_levels(recording: Recording) -> Array:
    """Return the highest allocated bytes of each step, −1 where no sample has them."""
    found = sampled_peaks(recording).per_step
    return found.allocated_bytes if len(found) else np.full(len(recording.steps), -1)
