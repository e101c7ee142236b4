"""The comparison of recordings that have samples alone, as logs and telemetry: by their highest values."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.sampled_peaks import sampled_peaks
from vramscope.model.counters import Counters
from vramscope.model.recording import Recording

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


def step_levels(recording: Recording) -> NDArray[Any]:
    """Return the highest allocated bytes of each step, −1 where no sample has them."""
    found = sampled_peaks(recording).per_step
    return found.allocated_bytes if len(found) else np.full(len(recording.steps), -1)
