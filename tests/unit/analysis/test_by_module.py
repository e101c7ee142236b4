"""Bytes belong to the module that its name, its call or backward's order says; they sum up to all."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramscope.analysis.by_module import ModuleEvidence, by_module, owners_of, same_depth
from vramscope.analysis.categories import categories
from vramscope.analysis.timeline import timeline
from vramscope.model.marks import Category, Labels, MarkKind, Marks, Phase, Phases, Steps
from vramscope.model.recording import Recording
from vramscope.model.stacks import StackBuilder
from vramscope.model.trace import Action, Trace

A, R = Action.ALLOC, Action.FREE_REQUESTED
PATHS = ("", "(root)", "blocks.0", "blocks.0.mlp", "blocks.1")


def running(*changes: tuple[int, str]) -> Marks:
    """From these events on the modules of these paths."""
    events, paths = zip(*changes, strict=True) if changes else ((), ())
    return Marks.of(
        kind=[MarkKind.MODULE] * len(events),
        event=events,
        name=[PATHS.index(path) for path in paths],
        names=PATHS,
    )


def owners(history: Recording) -> list[tuple[str, ModuleEvidence]]:
    known = categories(history)
    found = owners_of(history, known.allocations, known.assigned)
    rows = zip(found.module.tolist(), found.known.tolist(), strict=True)
    return [(found.paths[module], ModuleEvidence(how)) for module, how in rows]


def test_what_a_module_makes_while_it_runs_is_its_own(recording):
    marks = running((1, "blocks.0"), (2, "blocks.0.mlp"), (4, ""))
    history = recording((A, 1, 10), (A, 2, 10), (A, 3, 10), (A, 4, 10), (A, 5, 10), marks=marks)

    assert owners(history) == [
        ("", ModuleEvidence.NOT),
        ("blocks.0", ModuleEvidence.CALL),
        ("blocks.0.mlp", ModuleEvidence.CALL),
        ("blocks.0.mlp", ModuleEvidence.CALL),
        ("", ModuleEvidence.NOT),
    ]


def test_parameters_gradients_and_optimizer_state_are_their_modules(recording):
    labels = Labels.of(
        event=[4] * 4, address=[1, 2, 3, 4],
        category=[Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE, Category.ACTIVATION],
        name=[1, 2, 3, 4],
        names=("", "weight", "gradient of blocks.1.weight", "exp_avg of head.bias", "output of a module"),
    )  # fmt: skip
    history = recording(
        (A, 1, 10), (A, 2, 10), (A, 3, 10), (A, 4, 10), labels=labels, marks=running((0, "blocks.0"))
    )

    assert owners(history) == [
        ("(root)", ModuleEvidence.NAME),
        ("blocks.1", ModuleEvidence.NAME),
        ("head", ModuleEvidence.NAME),
        ("blocks.0", ModuleEvidence.CALL),
    ]


def test_backward_works_for_the_module_whose_saved_activation_it_frees_next(recording):
    spans: dict[str, Any] = {
        "steps": Steps.of(index=[0], start_event=[0], end_event=[7]),
        "phases": Phases.of(
            phase=[Phase.FORWARD, Phase.BACKWARD],
            step=[0, 0],
            depth=[0, 0],
            start_event=[0, 2],
            end_event=[2, 7],
        ),
    }
    history = recording(
        (A, 1, 10), (A, 2, 10), (A, 3, 10), (R, 2, 10), (A, 4, 10), (R, 1, 10), (A, 5, 10),
        marks=running((0, "blocks.0"), (1, "blocks.1"), (2, "")), **spans,
    )  # fmt: skip

    known = categories(history)
    found = owners_of(history, known.allocations, known.assigned)

    assert owners(history)[2:] == [
        ("blocks.1", ModuleEvidence.NEXT_FREED),
        ("blocks.0", ModuleEvidence.NEXT_FREED),
        ("", ModuleEvidence.NOT),
    ]
    assert found.forward.tolist() == [-1, -1, 1, 0, -1]


def test_what_backward_makes_for_the_loss_belongs_to_no_module(recording):
    phases = Phases.of(
        phase=[Phase.FORWARD, Phase.LOSS, Phase.BACKWARD], step=[0] * 3, depth=[0] * 3,
        start_event=[0, 1, 2], end_event=[1, 2, 6],
    )  # fmt: skip
    # The head's output and the loss's; backward makes a gradient before it frees each of them.
    history = recording(
        (A, 1, 10), (A, 2, 10), (A, 3, 10), (R, 2, 10), (A, 4, 10), (R, 1, 10),
        marks=running((0, "blocks.1"), (1, "")), phases=phases,
        steps=Steps.of(index=[0], start_event=[0], end_event=[6]),
    )  # fmt: skip

    assert owners(history)[1:] == [
        ("", ModuleEvidence.NOT),
        ("", ModuleEvidence.NOT),
        ("blocks.1", ModuleEvidence.NEXT_FREED),
    ]


@pytest.mark.parametrize("start", [2, 1])
def test_a_workspace_is_not_the_first_users(start):
    builder = StackBuilder()
    stack = builder.add([("at::cuda::getNewWorkspace()", "??", 0), ("forward", "model.py", 3)])
    trace = Trace.of(
        action=[A, A, R], address=[1, 2, 1], size=[10] * 3, block_size=[512] * 3, stack_id=[0, stack, 0]
    )
    phases = Phases.of(
        phase=[Phase.FORWARD, Phase.BACKWARD], step=[0, 0], depth=[0, 0],
        start_event=[0, start], end_event=[start, 3],
    )  # fmt: skip
    marks = running((0, "blocks.0"))

    found = owners(Recording(trace=trace, stacks=builder.build(), marks=marks, phases=phases))

    assert found == [("blocks.0", ModuleEvidence.CALL), ("", ModuleEvidence.NOT)]


def test_a_module_holds_what_those_within_it_hold(recording):
    marks = running((0, "blocks.0"), (1, "blocks.0.mlp"), (2, "blocks.1"))
    found = by_module(recording((A, 1, 500), (A, 2, 600), (A, 3, 10), marks=marks))

    assert found.totals == {"blocks.0.mlp": 1024, "blocks.0": 512, "blocks.1": 512}
    assert found.under("blocks.0") == 1536


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(1, 4096)), max_size=40),
    st.lists(st.tuples(st.integers(0, 40), st.sampled_from(PATHS)), max_size=10).map(sorted),
    st.integers(0, 40),
)
def test_the_modules_sum_up_to_what_is_allocated(play, ops, changes, instant):
    recording = play(ops, 5).recording
    history = Recording(trace=recording.trace, initial=recording.initial, marks=running(*changes))
    instant = min(instant, len(recording.trace))

    assert by_module(history, instant).bytes.sum() == timeline(history).allocated_bytes[instant]


def test_modules_are_joined_at_one_depth_and_none_is_part_of_another() -> None:
    few, group = same_depth(("", "0", "0.mlp", "0.mlp.up", "1.mlp"))
    many, joined = same_depth(tuple(f"h.{i}.{part}" for i in range(12) for part in ("attn", "mlp", "ln")))

    assert few == ("", "0 (itself)", "0.mlp (itself)", "0.mlp.up", "1.mlp")
    assert group.tolist() == [0, 1, 2, 3, 4]
    assert many == tuple(f"h.{i}" for i in range(12))
    assert joined.tolist() == [i for i in range(12) for _ in range(3)]
    layers = tuple(f"model.layers.{i}.mlp" for i in range(40))
    assert same_depth(layers)[0] == ("model.layers",)
    assert same_depth(layers, 60, 8)[0] == tuple(f"model.layers.{i}" for i in range(40))
