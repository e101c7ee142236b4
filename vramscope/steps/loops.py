"""Finds forwards that are whole loops of training: those of a trainer, which is a module itself."""

from collections import Counter
from typing import Any

from vramscope.model.marks import Phase
from vramscope.steps.spans import STEPS_IN
from vramscope.steps.stretches import Stretch

_LEAST_UPDATES = 7
"""Updates of one optimizer in a forward that make it a loop; two are enough where it loads batches. The inner
loop of a meta-learner has fewer."""


def without_loops(stretches: list[Stretch]) -> list[Stretch]:
    """Return the phases without the forwards that are loops; the others have to be nested again."""
    inside = [(s, s.outer) for s in stretches if s.outer is not None and s.within == 1]
    loading = {outer.first for s, outer in inside if s.phase == Phase.DATA}
    updates: Counter[Any] = Counter(
        (outer.first, s.mark.value, s.mark.name)
        for s, outer in inside
        if s.phase == Phase.OPTIMIZER and outer.phase in STEPS_IN
    )
    loops = {of[0] for of, n in updates.items() if n >= (2 if of[0] in loading else _LEAST_UPDATES)}
    return [stretch for stretch in stretches if stretch.first not in loops]
