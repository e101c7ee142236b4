"""What counts as growth: series written out by hand, and recordings of a loop that keeps a block a step."""

from dataclasses import replace

import numpy as np
import pytest

from vramscope.analysis.leaks import findings
from vramscope.analysis.leaks.growth import growth
from vramscope.model.marks import Phase, Phases, Steps
from vramscope.model.stacks import stacks_of
from vramscope.model.trace import Action, Trace

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
    assert found.bytes_per_step == pytest.approx(per_step, rel=0.05)


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

    assert len(result.iteration_boundaries) < 7
    assert findings(result) == []


def test_what_grows_by_less_than_the_threshold_is_not_reported(recording):
    assert loop(recording, 10, keeps=True).leaks(min_bytes_per_step=65 * KIB).leaks == ()


def with_phases(made, *rows):
    """*rows*: (phase, step, first event, end)."""
    names = ("phase", "step", "start_event", "end_event")
    columns = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    rest = {name: [0] * len(rows) for name in ("depth", "start_ns", "end_ns", "thread", "name")}
    return replace(made, phases=Phases.of(**columns, **rest))


def test_what_comes_after_the_loop_is_not_compared_with_its_steps(recording):
    """An evaluation, and the end of the function in which the list was: it frees all that leaked."""
    n_steps = 10
    made = loop(recording, n_steps, keeps=True)
    n_events = len(made.trace)
    kept = made.trace.address[(made.trace.action == Action.ALLOC) & (made.trace.block_size == 64 * KIB)]
    frees = [
        (action, at, 64 * KIB) for at in kept for action in (Action.FREE_REQUESTED, Action.FREE_COMPLETED)
    ]
    after = recording(*frees).trace
    trace = Trace.of(
        **{name: [*values, *dict(after.columns())[name]] for name, values in made.trace.columns()}
    )
    ends = [*made.steps.end_event, len(trace)]
    steps = Steps.of(index=range(n_steps + 1), start_event=[0, *ends[:-1]], end_event=ends)
    ended = [(Phase.OPTIMIZER, step, end - 1, end) for step, end in enumerate(ends[:n_steps])]
    whole = with_phases(replace(made, trace=trace, steps=steps), *ended)
    (finding,) = findings(whole.leaks())

    assert finding.bytes_per_step == 64 * KIB
    assert len(whole.leaks().iteration_boundaries) == n_steps
    assert whole.leaks().compared == f"{n_steps} steps"
    assert n_events == whole.leaks().iteration_boundaries[-1]


CALL = [("_make_grads", "torch/autograd/__init__.py", 233), ("train", "train.py", 7)]


def backward(recording, *, is_called_with_gradient):
    """Ten steps, each with the first gradient (unless given) made by the call, and 64 KiB without a stack."""
    rows, phases, ends = [], [], []
    for step in range(10):
        if not is_called_with_gradient or step == 0:
            rows += [(Action.ALLOC, 512, 512, 2), (Action.FREE_REQUESTED, 512, 512)]
            rows += [(Action.FREE_COMPLETED, 512, 512)]
        start = len(rows)
        rows.append((Action.ALLOC, (step + 16) * 64 * KIB, 64 * KIB, 0))
        phases.append((Phase.BACKWARD, step, start, len(rows)))
        ends.append(len(rows))
    steps = Steps.of(index=range(10), start_event=[0, *ends[:-1]], end_event=ends)
    return with_phases(recording(*rows, steps=steps, stacks=stacks_of(CALL)), *phases)


def test_what_backward_makes_without_a_stack_has_the_line_that_called_it(recording):
    result = backward(recording, is_called_with_gradient=False).leaks()
    (finding,) = findings(result)

    assert (finding.file, finding.line) == ("train.py", 7)
    assert [line.is_in_backward for line in result.leaks[0].lines] == [True]
    assert finding.evidence["lines"][0]["in_backward"] is True


def test_a_backward_that_was_given_its_first_gradient_has_no_line(recording):
    (finding,) = findings(backward(recording, is_called_with_gradient=True).leaks())

    assert finding.line is None
