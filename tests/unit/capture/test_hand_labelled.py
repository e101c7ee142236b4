"""Loops labelled by hand: at least 99 % of the bytes that a phase allocated are attributed to it.

The truth is what a person wrote beside the statements (``with now("forward"):``), kept as the number of
blocks that were born until then; what is compared is the bytes of every birth.
"""

import json
import os
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from standin_fixtures import IS_BEFORE_2_13

from vramscope.loading import load
from vramscope.model.marks import Phase
from vramscope.model.trace import Action
from vramscope.steps import resolve
from vramscope.steps.innermost import phases_of

ROOT = Path(__file__).parents[3]
PROGRAMS = Path(__file__).parent / "programs"
sys.path.append(str(PROGRAMS))

from hand_labelled import (  # noqa: E402
    BETWEEN,
    LOOPS,
    Truth,
    by_hand,
    gradients_asked_for,
    optimizers_in_backward,
)

WITHOUT_AN_OPTIMIZER = (by_hand, gradients_asked_for, optimizers_in_backward)
"""Loops in which no optimizer steps by itself."""

SHARE = 0.99

# One process for all loops: starting CUDA costs more than they do.
ON_CUDA = """
import json, time, torch, vramscope
torch.backends.cudnn.enabled = False
torch.set_default_device("cuda")
from hand_labelled import LOOPS, Truth
torch.ones(8, 8) @ torch.ones(8, 8)
n_born = lambda: torch.cuda.memory_stats()["allocation.all.allocated"]
for loop in LOOPS:
    torch.manual_seed(0)
    with vramscope.record(loop.__name__, quiet=True):
        there = n_born()
        now = Truth(lambda: n_born() - there)
        loop(now)
        now.settle()
    time.sleep(0.2)
    print(json.dumps(now.labels))
"""


def agreement(trace, phases, labels):
    """Bytes by (label of the truth, phase of ours); what is only within a region of the user's is between."""
    births = np.flatnonzero(trace.action == Action.ALLOC)
    assert len(births) == len(labels)
    row = phases_of(phases, len(trace))[births]
    names = {-1: BETWEEN} | {
        at: BETWEEN if phase == Phase.USER else Phase(phase).name.lower()
        for at, phase in enumerate(phases.phase.tolist())
    }
    found = Counter()
    for label, at, size in zip(labels, row.tolist(), trace.size[births].tolist(), strict=True):
        found[label, names[at]] += size
    return found


def share_of(found):
    return sum(size for (label, ours), size in found.items() if label == ours) / sum(found.values())


def labelled(recorded, loop):
    """The recording of *loop*, and the phases that a person wrote beside its allocations."""
    torch.manual_seed(0)
    recording = recorded()
    with recording:
        storages = recording.capture._storages
        there = storages.n_born
        now = Truth(lambda: storages.n_born - there)
        loop(now)
        now.settle()
    return recording, now


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_the_bytes_of_a_loop_are_in_the_phases_that_a_person_wrote_beside_them(recorded, loop, capsys):
    recording, now = labelled(recorded, loop)

    trace = recording.sink.trace
    steps, phases = resolve(recording.sink.marks, len(trace), 0)
    found = agreement(trace, phases, now.labels)
    with capsys.disabled():
        print(f"\n{loop.__name__}: {share_of(found):.3%} of the bytes in the right phase", end=" ")
    assert share_of(found) >= SHARE, found
    assert len(steps) == LOOPS[loop]


class Trainer(torch.nn.Module):
    """A module whose forward is a whole training loop, and loads a batch."""

    def __init__(self, loop):
        super().__init__()
        self.loop = loop

    def forward(self, now):
        next(iter(torch.utils.data.DataLoader([0])))
        self.loop(now)


@pytest.mark.parametrize("loop", [loop for loop in LOOPS if loop not in WITHOUT_AN_OPTIMIZER])
def test_a_loop_in_the_forward_of_a_module_has_the_same_steps_and_phases(recorded, loop):
    recording, now = labelled(recorded, Trainer(loop))

    trace = recording.sink.trace
    steps, phases = resolve(recording.sink.marks, len(trace), 0)
    assert len(steps) == LOOPS[loop]
    assert share_of(agreement(trace, phases, now.labels)) >= SHARE


@pytest.mark.standin
@pytest.mark.skipif(IS_BEFORE_2_13, reason="older versions divide by zeros here")
def test_the_same_on_cuda(forks, tmp_path, capsys):
    done = forks.run_code(ON_CUDA, cwd=tmp_path, variables={"PYTHONPATH": f"{ROOT}{os.pathsep}{PROGRAMS}"})
    assert done.returncode == 0, done.stderr
    labels = [json.loads(line) for line in done.stdout.splitlines()]

    for loop, truth in zip(LOOPS, labels, strict=True):
        (recording,) = load(tmp_path / loop.__name__).recordings
        found = agreement(recording.trace, recording.phases, truth)
        with capsys.disabled():
            print(f"\n{loop.__name__} on CUDA: {share_of(found):.3%}", end=" ")
        assert share_of(found) >= SHARE, (loop.__name__, found)
        assert len(recording.steps) == LOOPS[loop], loop.__name__
