"""Thousands of small allocations are a finding where a line of the program makes them."""

import pytest

from vramscope.analysis.small_allocations import small_allocations
from vramscope.model.marks import Steps
from vramscope.model.stacks import stacks_of
from vramscope.model.trace import Action

MAIN = ("main", "/home/me/train.py", 9)
OF_OPTIMIZER = ("step", "/site-packages/torch/optim/lbfgs.py", 400)
CLOSURE = ("closure", "/home/me/train.py", 5)


@pytest.mark.parametrize(
    ("frames", "line"), [((OF_OPTIMIZER, MAIN), None), ((CLOSURE, OF_OPTIMIZER, MAIN), 5), ((MAIN,), 9)]
)
def test_the_scalars_of_torchs_own_optimizer_are_no_lines_to_change(recording, frames, line):
    stacks = stacks_of(list(frames))
    turn = [(action, 0, 4, len(stacks) - 1) for action in (Action.ALLOC, Action.FREE_COMPLETED)]
    made = recording(
        *turn * 6000, stacks=stacks, steps=Steps.of(index=[0], start_event=[0], end_event=[12_000])
    )

    said = small_allocations(made)

    assert [each.line for each in said] == ([line] if line else [])
