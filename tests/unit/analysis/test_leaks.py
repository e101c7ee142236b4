"""What counts as growth: series written out by hand, and recordings of a loop that keeps a block a step."""

import numpy as np
import pytest

from vramscope.analysis._leak_growth import growth
from vramscope.analysis.leaks import findings
from vramscope.model.marks import Steps
from vramscope.model.stacks import stacks_of
from vramscope.model.trace import Action

KIB = 1 << 10
RISING = np.arange(30) * 64 * KIB
NOISE = np.random.default_rng(0).integers(0, 400 * KIB, 300)


@pytest.mark.parametrize(
    "level",
    [
        np.full(30, 100),
        np.minimum(RISING, 64 * KIB * 20),
        np.where(np.arange(30) < 4, RISING, RISING[4]),
        np.arange(30) % 7 * 64 * KIB,
        NOISE,
        NOISE[:10],
        np.maximum.accumulate(NOISE),
        64 * KIB * (1 - np.exp(-np.arange(300) / 60)),
        -RISING,
        RISING[:6],
    ],
    ids=[
        "flat",
        "a plateau",
        "a warm-up",
        "a sawtooth",
        "noise",
        "little noise",
        "records",
        "ever slower",
        "falling",
        "too short",
    ],
)
def test_what_does_not_grow(level):
    assert growth(level) is None


@pytest.mark.parametrize(
    ("level", "per_step"),
    [
        (RISING, 64 * KIB),
        (RISING[:7], 64 * KIB),
        (np.arange(100) // 5 * 5 * 64 * KIB, 64 * KIB),
        (np.arange(300) * 512 * KIB + NOISE, 512 * KIB),
        (np.arange(2000) * KIB, KIB),
    ],
    ids=["steady", "the shortest", "every fifth step", "under noise", "long"],
)
def test_what_grows_has_its_rate(level, per_step):
    found = growth(level)

    assert found is not None
    assert found.per_step == pytest.approx(per_step, rel=0.05)


def loop(recording, n_steps, keeps):
    """A recording of steps that each allocate two blocks and free the first; the second where not *keeps*."""
    rows, ends, address = [], [], 1 << 20
    for _ in range(n_steps):
        rows += [(Action.ALLOC, 512, 300, 1), (Action.ALLOC, address, 64 * KIB, 2)]
        rows += [(Action.FREE_REQUESTED, 512, 300), (Action.FREE_COMPLETED, 512, 300)]
        if keeps:
            address += 64 * KIB
        else:
            rows += [(Action.FREE_REQUESTED, address, 64 * KIB), (Action.FREE_COMPLETED, address, 64 * KIB)]
        ends.append(len(rows))
    starts = [0, *ends[:-1]]
    steps = Steps.of(index=range(n_steps), start_event=starts, end_event=ends)
    stacks = stacks_of([("train", "train.py", 1)], [("train", "train.py", 7)])
    return recording(*rows, steps=steps, stacks=stacks)


def test_a_block_kept_every_step_is_a_leak_of_its_line(recording):
    (finding,) = findings(loop(recording, 10, keeps=True).leaks())

    assert (finding.kind, finding.file, finding.line) == ("leak", "train.py", 7)
    assert finding.bytes_per_step == 64 * KIB
    assert finding.cause == "unknown"
    assert finding.holder is None


def test_a_block_freed_every_step_is_none(recording):
    assert findings(loop(recording, 10, keeps=False).leaks()) == []


def test_six_steps_are_too_few_to_say_anything(recording):
    result = loop(recording, 6, keeps=True).leaks()

    assert len(result.turns) < 7
    assert findings(result) == []


def test_what_grows_by_less_than_asked_for_is_not_told(recording):
    assert loop(recording, 10, keeps=True).leaks(min_bytes_per_step=65 * KIB).leaks == ()
