"""Birth, death and the stack decide where nobody knew the tensor, and every allocation says why."""

from dataclasses import replace
from pathlib import Path

import pytest

import vramscope
from vramscope.analysis.categories import Reason, categories
from vramscope.analysis.lifetimes import ALIVE
from vramscope.model.device import Process
from vramscope.model.marks import Category, Labels, MarkKind, Marks, Phase, Phases, Steps
from vramscope.model.recording import Recording
from vramscope.model.stacks import StackBuilder
from vramscope.model.trace import Action, Trace

A, R = Action.ALLOC, Action.FREE_REQUESTED
HOPPER = 33_554_432
SAMPLES = Path(__file__).parents[3] / "sample_traces"


def during(*spans, n_steps=1, length=100):
    """Phases by events, closed by marks, in steps of *length* events."""
    phase, start, end = zip(*spans, strict=True)
    end_ns = [1000 + at for at in end]
    return {
        "steps": Steps.of(
            index=range(n_steps),
            start_event=[length * i for i in range(n_steps)],
            end_event=[length * (i + 1) for i in range(n_steps)],
        ),
        "phases": Phases.of(
            phase=phase,
            step=[at // length for at in start],
            depth=[0] * len(spans),
            start_event=start,
            end_event=end,
            end_ns=end_ns,
        ),
        "marks": Marks.of(kind=[MarkKind.PHASE_END] * len(end), phase=phase, time_ns=end_ns),
    }


def of(history):
    assigned = categories(history).assigned
    rows = zip(assigned.category.tolist(), assigned.reason.tolist(), strict=True)
    return [(Category(category), Reason(reason)) for category, reason in rows]


def test_what_the_last_step_saved_and_the_program_still_holds_is_an_activation(recording):
    history = recording(
        (A, 1, 10), (A, 2, 10), (R, 2, 10), (A, 3, 10), (R, 3, 10),
        **during((Phase.FORWARD, 0, 1), (Phase.BACKWARD, 1, 3), length=4),
    )  # fmt: skip

    assert of(history)[0] == (Category.ACTIVATION, Reason.SAVED)


def test_what_forward_made_and_the_loss_used_up_is_temporary(recording):
    history = recording(
        (A, 1, 10), (A, 2, 10), (R, 1, 10), (A, 3, 10),
        **during((Phase.FORWARD, 0, 1), (Phase.LOSS, 1, 3), (Phase.BACKWARD, 3, 4)),
    )  # fmt: skip

    assert of(history)[:2] == [
        (Category.TEMPORARY, Reason.WITHIN),
        (Category.ACTIVATION, Reason.SAVED),
    ]


def test_a_batch_made_by_hand_before_forward_is_input(recording):
    history = recording(
        (A, 1, 10), (A, 2, 10), (R, 2, 10), (A, 3, 10), (R, 3, 10), (A, 4, 10),
        **during((Phase.FORWARD, 3, 4), (Phase.BACKWARD, 4, 5)),
    )  # fmt: skip

    assert of(history)[:2] == [(Category.INPUT, Reason.LOADED), (Category.TEMPORARY, Reason.WITHIN)]


def test_the_graph_of_a_gradient_is_an_activation_of_the_backward_that_frees_it(recording):
    history = recording(
        (A, 1, 10), (A, 2, 10), (R, 1, 10), (A, 3, 1),
        **during((Phase.BACKWARD, 0, 2), (Phase.BACKWARD, 2, 3)),
    )  # fmt: skip

    assert of(history)[:2] == [
        (Category.ACTIVATION, Reason.KEPT_GRAPH),
        (Category.GRADIENT, Reason.LEFT_BY_BACKWARD),
    ]


def failing_at(event, history):
    """The same program, whose next allocation failed at *event*."""
    marks = history["marks"]
    at = Marks.of(
        kind=[*marks.kind.tolist(), MarkKind.OOM],
        phase=[*marks.phase.tolist(), 0],
        time_ns=[*marks.time_ns.tolist(), 10**6],
        event=[*[0] * len(marks), event],
    )
    return {**history, "marks": at}


def test_what_a_forward_held_when_memory_ran_out_is_an_activation(recording):
    history = recording(
        (A, 1, 10), (A, 2, 10), (R, 2, 10), (A, 3, 10), (R, 3, 10),
        **failing_at(4, during((Phase.FORWARD, 0, 5))), source="cuda",
    )  # fmt: skip

    assert of(history) == [
        (Category.ACTIVATION, Reason.UNFINISHED),
        (Category.TEMPORARY, Reason.WITHIN),
        (Category.ACTIVATION, Reason.UNFINISHED),
    ]


def test_also_where_a_loss_written_by_hand_ran_out_of_memory(recording):
    history = recording(
        (A, 1, 10), (A, 2, 10),
        **failing_at(2, during((Phase.FORWARD, 0, 1))), source="cuda",
    )  # fmt: skip

    assert of(history) == [(Category.ACTIVATION, Reason.UNFINISHED)] * 2


def test_also_where_a_smaller_batch_then_reaches_backward(recording):
    history = recording(
        (A, 1, 10), (R, 1, 10), (A, 1, 10), (A, 2, 10), (R, 1, 10),
        **failing_at(1, during((Phase.FORWARD, 0, 1), (Phase.FORWARD, 2, 3), (Phase.BACKWARD, 3, 5))),
        source="cuda",
    )  # fmt: skip

    assert of(history)[:2] == [
        (Category.ACTIVATION, Reason.UNFINISHED),
        (Category.ACTIVATION, Reason.SAVED),
    ]


def test_what_a_forward_that_still_runs_holds_is_an_activation(recording):
    spans = during((Phase.FORWARD, 0, 2))
    history = recording((A, 1, 10), (A, 2, 10), **{**spans, "marks": Marks.of()})

    assert of(history) == [(Category.ACTIVATION, Reason.UNFINISHED)] * 2


@pytest.mark.parametrize("phase", [Phase.EVAL, Phase.BACKWARD, Phase.OPTIMIZER])
def test_what_another_phase_held_when_memory_ran_out_is_no_activation(recording, phase):
    history = recording(
        (A, 1, 10), (A, 2, 10), **failing_at(2, during((phase, 0, 2))), source="cuda"
    )  # fmt: skip

    assert Category.ACTIVATION not in [category for category, _ in of(history)]


def test_a_forward_before_the_last_backward_is_not_the_one_that_failed(recording):
    history = recording(
        (A, 1, 10), (A, 2, 10), (A, 3, 10),
        **failing_at(3, during((Phase.FORWARD, 0, 1), (Phase.OPTIMIZER, 1, 2), (Phase.FORWARD, 2, 3))),
        source="cuda",
    )  # fmt: skip

    assert of(history)[0] == (Category.UNKNOWN, Reason.NONE)
    assert of(history)[2] == (Category.ACTIVATION, Reason.UNFINISHED)


def multiplied(*blocks, source="cuda"):
    """Blocks of one forward that live to the end, and an event after it."""
    rows = [(A, 0, 1 << 40 | at << 30, size, size, 0, 0, 0) for at, size in enumerate(blocks)]
    rows.append((A, 0, 1, 512, 512, 0, 0, 0))
    columns = dict(zip(Trace.DTYPES, zip(*rows, strict=True), strict=True))
    spans = during((Phase.FORWARD, 0, len(blocks)))
    return Recording(source=source, trace=Trace.of(**columns), **spans)


def test_a_block_of_the_size_and_life_of_a_workspace_is_one():
    assert of(multiplied(HOPPER, 1000))[:2] == [
        (Category.WORKSPACE, Reason.WORKSPACE),
        (Category.UNKNOWN, Reason.NONE),
    ]


@pytest.mark.parametrize(
    "history",
    [
        multiplied(*[HOPPER] * 5),
        multiplied(HOPPER, source="simulated"),
        multiplied(HOPPER, source="snapshot"),
    ],
    ids=["too many", "no CUDA", "no names"],
)
def test_the_size_alone_makes_no_workspace(history):
    assert Reason.WORKSPACE not in [reason for _, reason in of(history)]


def taken_by_one_product(*, torch="2.15.0+cu132", n_between=0, size=HOPPER):
    """A result, the workspace of its product, and *n_between* other blocks before that is freed."""
    rows = [(A, 1 << 40, 512), (A, 2 << 40, size)]
    rows += [(A, at << 20, 512) for at in range(1, n_between + 1)]
    rows += [(R, 2 << 40, size), (A, 3 << 40, 512)]
    columns = {name: [row[i] for row in rows] for i, name in enumerate(("action", "address", "size"))}
    spans = during((Phase.FORWARD, 0, len(rows)))
    trace = Trace.of(**columns, block_size=columns["size"])
    return Recording(source="cuda", trace=trace, process=Process(torch=torch), **spans)


def test_from_torch_2_15_on_each_product_has_a_workspace_of_its_own():
    """aten/src/ATen/cuda/CublasHandlePool.cpp: it is requested last and freed first."""
    assert of(taken_by_one_product())[1] == (Category.WORKSPACE, Reason.WORKSPACE)


@pytest.mark.parametrize(
    "history",
    [
        taken_by_one_product(torch="2.14.1+cu130"),
        taken_by_one_product(torch=""),
        taken_by_one_product(n_between=1),
        taken_by_one_product(size=HOPPER - 512),
    ],
    ids=["a thread's own until 2.14", "unknown version", "used by another operation", "another size"],
)
def test_a_block_of_another_version_life_or_size_is_no_workspace_of_one_product(history):
    assert of(history)[1][0] is not Category.WORKSPACE


def freed_at_the_end(*, in_phase=False, follows=Phase.BACKWARD, last=Phase.FORWARD):
    """A block of a workspace's size, freed after the last of two steps, before the program's end."""
    rows = [(A, 1 << 40, HOPPER), (A, 1, 512), (R, 1, 512), (A, 2, 512), (R, 1 << 40, HOPPER), (A, 3, 512)]
    columns = {name: [row[i] for row in rows] for i, name in enumerate(("action", "address", "size"))}
    spans = [(Phase.EVAL, 0, 1), (follows, 2, 3), (last, 3, 4 + in_phase)]
    return Recording(
        source="cuda", trace=Trace.of(**columns, block_size=columns["size"]), **during(*spans, length=6)
    )


def test_a_workspace_that_the_program_drops_at_its_end_was_one():
    """Lightning clears cuBLAS's workspaces when its training is over."""
    assert of(freed_at_the_end())[0] == (Category.WORKSPACE, Reason.WORKSPACE)


@pytest.mark.parametrize(
    "history",
    [freed_at_the_end(in_phase=True), freed_at_the_end(follows=Phase.OPTIMIZER, last=Phase.DATA)],
    ids=["freed within a phase", "freed after its only phase"],
)
def test_what_is_freed_while_the_program_multiplies_is_no_workspace(history):
    assert of(history)[0][0] is not Category.WORKSPACE


@pytest.mark.parametrize("n_kept", [1, 7])
def test_autograds_thread_has_a_workspace_of_its_own_however_many_outputs_are_kept(n_kept):
    """cuBLAS has a handle for each thread: a block left by backward is not a gradient because of others."""
    rows = [(A, at << 30, HOPPER) for at in range(1, n_kept + 2)] + [(A, 1, 512)]
    columns = dict(zip(("action", "address", "size"), zip(*rows, strict=True), strict=True))
    spans = during((Phase.FORWARD, 0, n_kept), (Phase.BACKWARD, n_kept, n_kept + 1))
    trace = Trace.of(**columns, block_size=columns["size"])

    found = of(Recording(source="cuda", trace=trace, **spans))

    assert found[n_kept] == (Category.WORKSPACE, Reason.WORKSPACE)
    assert (found[0][0] is Category.WORKSPACE) == (n_kept == 1)


def test_a_tensor_with_a_name_is_no_workspace():
    history = multiplied(HOPPER)
    labels = Labels.of(event=[1], address=[1 << 40], category=[Category.PARAMETER])

    assert of(Recording(source="cuda", trace=history.trace, labels=labels))[0] == (
        Category.PARAMETER,
        Reason.IDENTITY,
    )


def with_stack(*frames):
    builder = StackBuilder()
    stack = builder.add(frames)
    trace = Trace.of(action=[A], address=[1], size=[10], block_size=[512], stack_id=[stack])
    return Recording(source="snapshot", trace=trace, stacks=builder.build())


def test_frames_of_cpp_say_workspace_for_certain():
    history = with_stack(
        ("gather", "??", 0), ("at::cuda::getNewWorkspace()", "??", 0), ("forward", "linear.py", 125)
    )

    assert of(history) == [(Category.WORKSPACE, Reason.WORKSPACE)]


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/lib/site-packages/torch/nn/parallel/distributed.py", Category.COMMUNICATION),
        (
            "/lib/site-packages/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py",
            Category.COMMUNICATION,
        ),
        ("/lib/site-packages/torch/distributed/tensor/_dispatch.py", Category.UNKNOWN),
        ("train.py", Category.UNKNOWN),
    ],
)
def test_what_torchs_own_collectives_ask_for_is_communication(file, expected):
    assert of(with_stack(("f", file, 1), ("main", "train.py", 3)))[0][0] is expected


PACKAGES = "/lib/site-packages/torch"
FSDP1 = f"{PACKAGES}/distributed/fsdp/_flat_param.py"
FSDP2 = f"{PACKAGES}/distributed/fsdp/_fully_shard/_fsdp_param.py"
STAGE = f"{PACKAGES}/distributed/pipelining/stage.py"
SIZES_STORAGE = ("_resize_", f"{PACKAGES}/storage.py", 1270)
FROM_META = ("_make_tensor_from_meta", f"{PACKAGES}/distributed/pipelining/_utils.py", 323)


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([("_init_sharded_param", FSDP2, 1)], Category.SHARDED_PARAMETER),
        ([("to_sharded_post_forward", FSDP2, 1)], Category.SHARDED_PARAMETER),
        ([("<listcomp>", FSDP2, 1), ("init_all_gather_outputs", FSDP2, 1)], Category.UNSHARDED_PARAMETER),
        ([("alloc_storage", FSDP2, 1), ("alloc_all_gather_outputs", FSDP2, 1)], Category.UNSHARDED_PARAMETER),
        (
            [("alloc_all_gather_outputs", f"{PACKAGES}/distributed/_composable/fsdp/_fsdp_param.py", 1)],
            Category.UNSHARDED_PARAMETER,
        ),
        ([("to_accumulated_grad_if_needed", FSDP2, 1)], Category.GRADIENT),
        ([("all_gather_inputs", FSDP2, 1)], Category.COMMUNICATION),
        ([("_get_shard", FSDP1, 1)], Category.SHARDED_PARAMETER),
        (
            [SIZES_STORAGE, ("_alloc_storage", f"{PACKAGES}/distributed/utils.py", 184),
             ("_alloc_padded_unsharded_flat_param", FSDP1, 1)],
            Category.UNSHARDED_PARAMETER,
        ),
        ([("_use_low_precision_shard", FSDP1, 1)], Category.COMMUNICATION),
        ([FROM_META, ("_setup_forward_recv_info", STAGE, 1)], Category.COMMUNICATION),
        ([FROM_META, ("_to_tensor", STAGE, 1)], Category.UNKNOWN),
        ([("alloc_all_gather_outputs", "train.py", 1)], Category.UNKNOWN),
    ],
)  # fmt: skip
def test_torchs_own_functions_say_what_is_a_shard_and_what_is_gathered(frames, expected):
    assert of(with_stack(*frames, ("main", "train.py", 3)))[0][0] is expected


def test_a_parameter_that_a_module_shows_while_it_is_gathered_stays_a_gathered_one():
    labels = Labels.of(
        event=[1], address=[1], category=[Category.PARAMETER], name=[1], names=("", "0.weight")
    )
    history = with_stack(("alloc_all_gather_outputs", FSDP2, 1), ("main", "train.py", 3))
    found = categories(replace(history, labels=labels))

    assert found.totals == {"unsharded_parameter": 512}
    assert found.why(0) == "parameter `0.weight`, gathered from the shards of all ranks"


@pytest.mark.parametrize(
    "inner",
    [
        [("_resize_", f"{PACKAGES}/storage.py", 1270)],
        [("at::native::resize_cuda_", "??", 0), ("_resize_", f"{PACKAGES}/storage.py", 1270)],
        [("at::detail::empty_cuda", "/src/EmptyTensor.cpp", 12)],
    ],
    ids=["a resized storage", "frames of C++", "C++ alone"],
)
def test_the_line_that_asked_is_the_innermost_of_python_that_is_no_storage(inner):
    """FSDP gives its gathered parameters their bytes by ``storage._resize_``."""
    asked = ("_alloc_storage", f"{PACKAGES}/distributed/utils.py", 184)

    of_fsdp = of(with_stack(*inner, asked, ("forward", "train.py", 3)))
    of_the_user = of(with_stack(*inner, ("forward", "train.py", 3), asked))

    assert of_fsdp == [(Category.COMMUNICATION, Reason.COLLECTIVE)]
    assert of_the_user == [(Category.UNKNOWN, Reason.NONE)]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("__init__", f"{PACKAGES}/nn/modules/linear.py", 109), Category.PARAMETER),
        (("forward", f"{PACKAGES}/nn/modules/linear.py", 134), Category.UNKNOWN),
        (("__init__", f"{PACKAGES}/nn/modules/batchnorm.py", 60), Category.UNKNOWN),
        (("__init__", "model.py", 9), Category.UNKNOWN),
    ],
    ids=["parameters", "its forward", "buffers too", "the program's own"],
)
def test_what_a_module_without_buffers_constructs_is_a_parameter(asked, expected):
    """FSDP2 shards it before any call shows it: the full one had no name."""
    assert of(with_stack(asked, ("<module>", "train.py", 3)))[0][0] is expected


def test_every_category_says_why(recording):
    labels = Labels.of(
        event=[4, 4], address=[3, 4], category=[Category.PARAMETER, Category.OPTIMIZER_STATE], name=[1, 2],
        names=("", "blocks.0.mlp.weight", "exp_avg of blocks.0.mlp.weight"),
    )  # fmt: skip
    history = recording(
        (A, 1, 10), (A, 2, 10), (A, 3, 10), (A, 4, 10), (R, 1, 10), (R, 2, 10), (A, 5, 10), (A, 6, 10),
        labels=labels, **during((Phase.FORWARD, 0, 4), (Phase.BACKWARD, 4, 5), length=6, n_steps=1),
    )  # fmt: skip

    found = categories(history)

    assert [found.why(row) for row in range(5)] == [
        "born in forward of step 0 and alive when backward began; freed in backward of step 0",
        "born in forward of step 0 and alive when backward began; freed between the phases of step 0",
        "storage of parameter `blocks.0.mlp.weight`",
        "in an optimizer's state: exp_avg of blocks.0.mlp.weight",
        "born between the phases, outside of every step; alive at the end: nothing says what for",
    ]


@pytest.mark.parametrize("name", ["transformer", "transformer-cuda", "gan-retain-graph"])
def test_nothing_that_is_never_freed_is_temporary(name):
    """Real runs; on CUDA's allocator forward's thread and autograd's have a workspace of cuBLAS each."""
    for recording in vramscope.load(SAMPLES / name).recordings:
        found = recording.categories()
        is_temporary = found.assigned.category == Category.TEMPORARY

        assert is_temporary.any()
        assert (found.allocations.free_event[is_temporary] != ALIVE).all()
        if name == "transformer-cuda":
            assert found.totals["workspace"] == 2 * HOPPER
