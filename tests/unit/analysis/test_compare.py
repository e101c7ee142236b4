"""Two runs, step by step: what a place holds at most within each step, and what of it is different."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vramscope.analysis.compare import compare, group_peaks
from vramscope.analysis.lifetimes import lifetimes
from vramscope.model.marks import MarkKind, Marks, Phase, Phases, Steps
from vramscope.model.stacks import StackBuilder
from vramscope.model.trace import Action

A, R, C = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED
OPS = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 4096)), max_size=60)
TORCH = "/opt/lib/python3.11/site-packages/torch/nn/functional.py"


@given(OPS, st.integers(0, 10), st.integers(1, 3), st.data())
def test_the_peak_of_a_group_is_the_most_that_its_live_blocks_sum_up_to(play, ops, n_before, n_groups, data):
    played = play(ops, n_before)
    allocations = lifetimes(played.recording)
    n_events = len(played.recording.trace)
    start = data.draw(st.integers(0, n_events))
    end = data.draw(st.integers(start, n_events))
    group = np.array([address // 4096 % n_groups for address in allocations.address.tolist()], dtype="i8")

    found = group_peaks(allocations, group, n_groups, np.array([start]), np.array([end]))

    size = dict(
        zip(
            zip(allocations.address.tolist(), allocations.alloc_event.tolist(), strict=True),
            allocations.block_size.tolist(),
            strict=True,
        )
    )
    for number in range(n_groups):
        held = [
            sum(size[block] for block in live if block[0] // 4096 % n_groups == number)
            for live in played.live[start : end + 1]
        ]
        assert found[0, number] == max(held)


def two_steps(recording, weight: int, activation: int, *, root: str = "/home/me", line: int = 31):
    """A weight made before the first step; in each of two steps one activation."""
    builder = StackBuilder()
    made = builder.add([("__init__", f"{root}/net/model.py", 7)])
    used = builder.add([("linear", TORCH, 5), ("forward", f"{root}/net/model.py", line)])
    return recording(
        (A, 0, weight, made),
        (A, 1 << 20, activation, used),
        (R, 1 << 20, activation),
        (C, 1 << 20, activation),
        (A, 1 << 20, activation, used),
        (R, 1 << 20, activation),
        (C, 1 << 20, activation),
        stacks=builder.build(),
        steps=Steps.of(index=[0, 1], start_event=[1, 4], end_event=[4, 7]),
    )


def test_equal_runs_have_no_differences(recording):
    assert compare(two_steps(recording, 4096, 1024), two_steps(recording, 4096, 1024)).changes == ()


def test_the_line_that_holds_more_is_named_with_its_bytes(recording):
    found = compare(two_steps(recording, 4096, 1024), two_steps(recording, 4096, 1536))

    (line,) = found.of("line")
    assert (line.name, line.before_bytes, line.after_bytes, line.n_bytes) == (
        "net/model.py:31 forward: linear",
        1024,
        1536,
        512,
    )
    assert (line.typical_bytes, line.n_steps) == (512, 2)
    assert [(change.name, change.n_bytes) for change in found.of("total")] == [("allocated", 512)]
    assert (found.before_bytes.tolist(), found.after_bytes.tolist()) == ([5120, 5120], [5632, 5632])


def test_what_is_below_the_tolerance_is_left_out(recording):
    before, after = two_steps(recording, 512_000, 1024), two_steps(recording, 512_000, 1536)

    assert compare(before, after, tolerance=0.01).changes == ()
    assert compare(before, after, tolerance=0.0009).changes != ()


def test_the_same_program_elsewhere_and_a_line_lower_is_the_same(recording):
    before = two_steps(recording, 4096, 1024)
    after = two_steps(recording, 4096, 1024, root="/mnt/ci/build", line=32)

    assert compare(before, after).of("line") == ()


def test_a_line_that_is_new_held_nothing_before(recording):
    before, after = two_steps(recording, 4096, 1024), two_steps(recording, 4096, 1024)
    builder = StackBuilder()
    builder.add([("__init__", "/home/me/net/model.py", 7)])
    other = builder.add([("evaluate", "/home/me/net/eval.py", 3)])
    trace = after.trace
    stack_id = np.where(trace.address == 1 << 20, np.where(trace.action == A, other, 0), trace.stack_id)
    columns = dict(trace.columns()) | {"stack_id": stack_id}
    after = type(after)(trace=type(trace).of(**columns), stacks=builder.build(), steps=after.steps)

    found = {
        change.name: (change.before_bytes, change.after_bytes) for change in compare(before, after).of("line")
    }

    assert found == {"net/model.py:31 forward: linear": (1024, 0), "net/eval.py:3 evaluate": (0, 1024)}


def test_only_steps_that_both_have_are_compared(recording):
    long, short = two_steps(recording, 4096, 1024), two_steps(recording, 4096, 1024)
    # A run that was resumed: it has the weight and the second step, and never had the first.
    later = Steps.of(index=[1], start_event=[1], end_event=[4])
    short = type(short)(trace=short.trace.rows(np.array([0, 4, 5, 6])), stacks=short.stacks, steps=later)

    found = compare(long, short)

    assert (found.steps.tolist(), found.only_before, found.only_after) == ([1], 1, 0)
    assert found.changes == ()


def test_without_steps_whole_recordings_are_compared(recording):
    found = compare(recording((A, 0, 1024), (R, 0, 1024)), recording((A, 0, 2048), (R, 0, 2048)))

    assert [(change.kind, change.n_bytes) for change in found.changes] == [
        ("total", 1024),
        ("category", 1024),
        ("line", 1024),
    ]
    assert found.of("line")[0].name == "no stack recorded"


def with_evaluation(recording, evaluation: int):
    """A step that needs 1024 bytes beside the weight, and an evaluation after it that needs more."""
    builder = StackBuilder()
    made = builder.add([("__init__", "/home/me/net/model.py", 7)])
    used = builder.add([("forward", "/home/me/net/model.py", 31)])
    judged = builder.add([("forward", "/home/me/net/model.py", 31), ("test", "/home/me/net/train.py", 50)])
    return recording(
        (A, 0, 4096, made),
        (A, 1 << 20, 1024, used),
        (R, 1 << 20, 1024),
        (C, 1 << 20, 1024),
        (A, 1 << 20, evaluation, judged),
        (R, 1 << 20, evaluation),
        (C, 1 << 20, evaluation),
        stacks=builder.build(),
        steps=Steps.of(index=[0], start_event=[1], end_event=[4]),
        phases=Phases.of(phase=[int(Phase.EVAL)], step=[-1], start_event=[4], end_event=[7]),
    )


def test_an_evaluation_that_needs_more_is_a_difference(recording):
    found = compare(with_evaluation(recording, 8192), with_evaluation(recording, 16384))

    assert [(each.name, each.before_bytes, each.after_bytes) for each in found.of("total")] == [
        ("allocated", 12288, 20480)
    ]
    assert [(each.name, each.before_bytes, each.after_bytes) for each in found.of("phase")] == [
        ("eval", 12288, 20480)
    ]
    (line,) = found.of("line")
    assert (line.name, line.before_bytes, line.after_bytes) == ("net/model.py:31 forward", 8192, 16384)
    assert (line.n_steps, line.is_outside) == (0, True)
    assert (found.peak_before_bytes, found.peak_after_bytes) == (12288, 20480)


def test_the_peak_of_a_comparison_is_that_of_the_whole_run(recording):
    before, after = two_steps(recording, 4096, 1024), two_steps(recording, 4096, 2048)
    # The later run's highest step is one that the other does not have.
    after = type(after)(
        trace=after.trace,
        stacks=after.stacks,
        steps=Steps.of(index=[7, 8], start_event=[1, 4], end_event=[4, 7]),
    )
    joined = replace(after, steps=Steps.of(index=[0, 8], start_event=[1, 4], end_event=[4, 7]))

    for other in (after, joined):
        found = compare(before, other)
        assert (found.peak_before_bytes, found.peak_after_bytes) == (
            before.peak().allocated.n_bytes,
            other.peak().allocated.n_bytes,
        )


def test_a_line_has_its_module(recording):
    marks = Marks.of(kind=[MarkKind.MODULE], event=[0], name=[1], names=("", "h.3.mlp"))
    before, after = (replace(two_steps(recording, 4096, n), marks=marks) for n in (1024, 2048))

    (line,) = compare(before, after).of("line")

    assert line.module == "h.3.mlp"
