"""In a file that somebody saved nobody marked a phase: the stacks of births and deaths decide, or nothing."""

import pytest

from vramscope.analysis.categories import Reason, categories
from vramscope.model.marks import Category
from vramscope.model.recording import Recording
from vramscope.model.stacks import StackBuilder
from vramscope.model.trace import Action, Trace

A, R = Action.ALLOC, Action.FREE_REQUESTED
TORCH = "/lib/site-packages/torch"
MAIN = ("<module>", "train.py", 1)
CALL = ("_call_impl", f"{TORCH}/nn/modules/module.py", 1789)
ENGINE = ("_engine_run_backward", f"{TORCH}/autograd/graph.py", 979)
STEP = ("step", f"{TORCH}/optim/adamw.py", 220)
FORWARD = (("forward", "model.py", 7), CALL, MAIN)
BACKWARD = (ENGINE, MAIN)
OPTIMIZER = (STEP, MAIN)
AGAIN = (("forward", "model.py", 7), CALL, ("unpack_hook", f"{TORCH}/utils/checkpoint.py", 1100))
CLOSURE = (("forward", "model.py", 7), CALL, ("closure", "train.py", 5), STEP, MAIN)
USER = (("loss", "train.py", 9), MAIN)
SILENT = ()


def file_of(*events, sizes=None):
    """``(action, block, stack)``, each block of 512 bytes or what *sizes* says."""
    builder = StackBuilder()
    stacks = [builder.add(stack) if stack else 0 for _, _, stack in events]
    size = [(sizes or {}).get(block, 512) for _, block, _ in events]
    trace = Trace.of(
        action=[action for action, _, _ in events],
        address=[(block + 1) << 30 for _, block, _ in events],
        size=size,
        block_size=size,
        stack_id=stacks,
    )
    return Recording(source="snapshot", trace=trace, stacks=builder.build())


def of(history):
    return [Category(category).name.lower() for category in categories(history).assigned.category.tolist()]


@pytest.mark.parametrize("backward", [BACKWARD, SILENT], ids=["a stack in autograd", "autograd's own thread"])
def test_a_step_is_recognized_by_its_stacks(backward):
    history = file_of(
        (A, 0, USER),
        (A, 1, FORWARD), (A, 2, FORWARD), (R, 2, FORWARD), (A, 3, FORWARD),
        (A, 4, USER),
        (A, 5, backward), (R, 1, backward), (A, 6, backward), (R, 5, backward), (R, 4, backward),
        (A, 7, OPTIMIZER), (A, 8, OPTIMIZER), (R, 8, OPTIMIZER), (R, 6, OPTIMIZER),
        (A, 9, FORWARD),
    )  # fmt: skip

    assert of(history) == [
        "unknown",  # a batch, or a parameter
        "activation",
        "temporary",
        "unknown",  # alive at the end: an output, perhaps
        "activation",  # what the loss saved
        "temporary",
        "gradient",
        "optimizer_state",
        "temporary",
        "unknown",
    ]
    assert categories(history).why(1) == "by the stacks, made by a forward and freed while backward ran"


def test_a_forward_that_a_checkpoint_runs_again_makes_activations():
    history = file_of(
        (A, 0, FORWARD), (A, 1, SILENT), (A, 2, AGAIN), (A, 3, AGAIN), (R, 3, AGAIN),
        (A, 4, SILENT), (R, 2, SILENT), (R, 1, SILENT), (R, 0, SILENT), (A, 5, OPTIMIZER),
        (R, 5, USER),
    )  # fmt: skip

    assert of(history)[:5] == ["activation", "temporary", "activation", "temporary", "gradient"]


def test_what_an_optimizers_closure_computes_is_not_the_optimizers():
    history = file_of(
        (A, 0, CLOSURE), (A, 1, BACKWARD), (R, 0, BACKWARD), (A, 2, OPTIMIZER), (A, 3, CLOSURE)
    )  # fmt: skip

    assert of(history)[:3] == ["activation", "gradient", "optimizer_state"]


WORKSPACE = 32 << 20
"""Bytes of cuBLAS's workspace on Hopper."""


def kept_from_backward(size, n, *, freed_by=None):
    """``n`` blocks of *size* that autograd's own thread requests and a second step finds."""
    kept = range(10, 10 + n)
    frees = [] if freed_by is None else [(R, block, freed_by) for block in kept]
    last = [(A, 6, FORWARD), (A, 7, SILENT), (R, 6, SILENT), (R, 7, OPTIMIZER)]
    return file_of(
        (A, 1, FORWARD), *((A, block, SILENT) for block in kept), (R, 1, SILENT), (A, 2, OPTIMIZER),
        *(frees if freed_by == OPTIMIZER else []), *last, *(frees if freed_by == USER else []),
        (A, 8, USER),
        sizes=dict.fromkeys(kept, size),
    )  # fmt: skip


@pytest.mark.parametrize("freed_by", [None, USER], ids=["kept", "cleared at the end"])
def test_a_gradient_that_may_be_the_workspace_of_autograds_thread_stays_unknown(freed_by):
    """That thread has a cuBLAS handle, and so a workspace, of its own; nothing but its size shows it."""
    assert of(kept_from_backward(WORKSPACE, 1, freed_by=freed_by))[1] == "unknown"
    assert of(kept_from_backward(WORKSPACE - 512, 1, freed_by=freed_by))[1] == "gradient"


def test_gradients_of_a_workspaces_size_that_the_next_step_replaces_are_gradients():
    assert of(kept_from_backward(WORKSPACE, 2, freed_by=OPTIMIZER))[1:3] == ["gradient"] * 2


def test_more_blocks_of_that_size_than_there_are_workspaces_are_gradients():
    """There are at most four workspaces of a stream, and backward's come first."""
    assert of(kept_from_backward(WORKSPACE, 6))[1:7] == ["unknown"] * 4 + ["gradient"] * 2


@pytest.mark.parametrize(
    "history",
    [
        file_of((A, 0, FORWARD), (A, 1, FORWARD), (R, 0, FORWARD), (R, 1, FORWARD)),
        file_of((A, 0, FORWARD), (A, 1, USER), (R, 0, USER)),
        file_of((A, 0, SILENT), (R, 0, SILENT)),
        file_of((A, 0, BACKWARD), (A, 1, BACKWARD)),
        file_of((A, 0, FORWARD), (A, 1, FORWARD), (R, 1, SILENT), (R, 0, SILENT)),
    ],
    ids=["no backward", "freed by the program", "no stacks", "cut within backward", "frees without stacks"],
)
def test_what_stacks_do_not_tell_stays_unknown(history):
    assert set(of(history)) == {"unknown"}
    assert set(categories(history).assigned.reason.tolist()) == {Reason.NONE}
