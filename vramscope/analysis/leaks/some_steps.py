"""Translates what grows in the steps that have events to all steps, where only some have them."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.leaks.growth import window
from vramscope.analysis.leaks.iterations import steps_with_events
from vramscope.analysis.leaks.leak import Leak
from vramscope.analysis.timeline import timeline
from vramscope.model.recording import Recording

_MOST_ABOVE = 1.5
"""How far the lines may grow beyond the level itself: its ends have batches of different sizes."""


class SomeSteps(NamedTuple):
    """The compared steps among all steps."""

    number: NDArray[Any]
    """The number of each step that has events."""
    apart: float
    """Steps from one of the compared ones to the next."""
    rise: float
    """Growth of the level itself, which the steps between do not change, in bytes per step."""

    def of_lines(self, leaks: tuple[Leak, ...]) -> tuple[Leak, ...]:
        """Return leaks by lines; where the level grows less, the steps between keep less, and it counts."""
        total = sum(leak.bytes_per_step for leak in leaks)
        share = self.rise / total if total > _MOST_ABOVE * self.rise else 1.0
        return tuple(self.placed(leak, share) for leak in leaks) if self.rise > 0 else ()

    def placed(self, leak: Leak, share: float) -> Leak:
        """Return a leak with the numbers of its steps among all, and *share* of its rate."""
        first, last = int(self.number[min(leak.first_step, len(self.number) - 1)]), int(self.number[-1])
        lines = tuple(replace(line, bytes_per_step=line.bytes_per_step * share) for line in leak.lines)
        rate = leak.bytes_per_step * share
        return replace(leak, first_step=first, n_steps=last - first + 1, bytes_per_step=rate, lines=lines)


def some_steps(recording: Recording, at: NDArray[Any]) -> SomeSteps:
    """Return the steps of the instants *at* among all steps."""
    steps, first = steps_with_events(recording), window(len(at))
    number = steps.index[np.minimum(np.searchsorted(steps.end_event, at), len(steps) - 1)]
    n_steps, level = max(int(number[-1] - number[first]), 1), timeline(recording).allocated_bytes[at]
    rise = float(level[-1] - level[first]) / n_steps
    return SomeSteps(steps.index, n_steps / max(len(at) - 1 - first, 1), rise)
