"""Folding keeps the user's lines, whoever wrote the path, and loses no byte."""

from pathlib import Path

import numpy as np
import pytest

import vramscope
from vramscope.analysis.folding import Origin, bytes_by_line, fold, origin, user_files
from vramscope.model.stacks import StackBuilder, stacks_of

TORCH = "/opt/conda/lib/python3.11/site-packages/torch/nn/functional.py"
TRAIN = "/home/me/train.py"
EINOPS = "/home/me/project/.venv/lib/python3.12/site-packages/einops/einops.py"
GPT2 = "/opt/conda/lib/python3.11/site-packages/transformers/models/gpt2/modeling_gpt2.py"


@pytest.mark.parametrize(
    "file",
    [
        TORCH,
        "/work/pytorch/torch/optim/adam.py",
        r"C:\Python310\lib\site-packages\torch\_tensor.py",
        r"C:\Python310\lib\runpy.py",
        "/usr/lib/python3.10/runpy.py",
        "/root/miniconda3/envs/py3.10/lib/python3.10/asyncio/events.py",
        "/tmp/torchinductor_me/ab/cabc.py",
        "<frozen runpy>",
        "CUDACachingAllocator.cpp",
        "./csu/../sysdeps/x86/libc-start.c",
        "??",
        "",
    ],
)
def test_files_of_torch_python_and_cpp_are_not_the_users(file):
    assert origin(file) is not Origin.USER


@pytest.mark.parametrize(
    "file",
    [
        TRAIN,
        r"D:\work\train.py",
        "/tmp/ipykernel_114/3105878423.py",
        "<ipython-input-3-abc>",
        "/home/me/my_torch_project/model.py",
        "/home/me/vramscope/train.py",
        "<stdin>",
    ],
)
def test_files_of_the_user_are_kept(file):
    assert origin(file) is Origin.USER


@pytest.mark.parametrize(
    ("calls", "shown"),
    [
        # python -c: the text is the program, and one of its lines is one row.
        ([("<module>", "<string>", 3)], ("<module>", "<string>", 3)),
        # A method that dataclasses generated in a program with a file of its own.
        ([("<module>", TRAIN, 9), ("__init__", "<string>", 2)], ("<module>", TRAIN, 9)),
        # A child of multiprocessing begins with a text as well.
        (
            [("<module>", "<string>", 1), ("spawn_main", "/usr/lib/python3/multiprocessing/spawn.py", 122),
             ("work", TRAIN, 5)],
            ("work", TRAIN, 5),
        ),
        (
            [("<module>", "<string>", 1), ("spawn_main", "/usr/lib/python3/multiprocessing/spawn.py", 122)],
            None,
        ),
    ],
)  # fmt: skip
def test_a_program_given_as_a_text_is_the_users(calls, shown):
    builder = StackBuilder()
    stack = builder.add([("linear", TORCH, 1), *reversed(calls)])

    folded = fold(builder.build())

    assert (folded.of[stack] > 0) == (shown is not None)
    assert shown is None or folded.frame(stack) == shown


@pytest.mark.parametrize(
    "file",
    [
        EINOPS,
        GPT2,
        r"C:\Users\me\venv\Lib\site-packages\timm\layers\mlp.py",
        "/usr/lib/python3/dist-packages/accelerate/optimizer.py",
        "/root/env/lib/python3.10/site-packages/single_module.py",
        "triton/runtime/jit.py",
        r"C:\Users\me\miniconda3\envs\pt\lib\contextlib.py",
        "/usr/lib/python3.11/contextlib.py",
        "Objects/descrobject.c",
        "cuda_utils.cuh",
        "<__array_function__ internals>",
        "/home/me/.venv/bin/accelerate",
        "/home/me/.vscode-server/extensions/ms-python.python/pythonFiles/lib/python/debugpy/server/cli.py",
    ],
)
def test_files_of_every_installed_package_are_not_the_users(file):
    assert origin(file) is not Origin.USER


def test_every_module_of_vramscope_is_folded_but_the_script_of_the_demo():
    package = Path(vramscope.__file__).parent
    files = {path.relative_to(package).as_posix() for path in package.rglob("*.py")}

    users = {file for file in files if origin(f"/src/somewhere/vramscope/{file}") is Origin.USER}

    assert users == {"commands/_demo_train.py"}


def test_the_users_line_is_named_however_many_libraries_lie_between():
    stacks = stacks_of(
        [
            ("empty", TORCH, 1),
            ("rearrange", EINOPS, 5),
            ("mlp", "/home/me/transformer.py", 45),
            ("main", TRAIN, 9),
        ]
    )
    folded = fold(stacks)

    assert [(each.file, each.line) for each in folded.stacks.frames(int(folded.of[-1]))] == [
        ("/home/me/transformer.py", 45),
        (TRAIN, 9),
    ]
    assert folded.strings[folded.via[-1]] == "empty"


def test_a_library_run_from_a_checkout_is_folded_where_another_file_is_the_users():
    checkout = "/home/me/src/transformers/src/transformers/models/gpt2/modeling_gpt2.py"
    same_name = "/home/me/project/nets/transformers/dit.py"
    stacks = stacks_of([("forward", checkout, 5), ("forward", same_name, 3), ("main", TRAIN, 9)])

    assert user_files(stacks) == {same_name, TRAIN}
    assert user_files(stacks_of([("forward", checkout, 5)])) == {checkout}


def test_a_folder_of_the_user_may_be_called_torch_where_torch_is_seen_elsewhere():
    mine = "/home/me/torch/train.py"

    assert user_files(stacks_of([("linear", TORCH, 5), ("main", mine, 9)])) == {mine}
    assert user_files(stacks_of([("linear", "torch/nn/functional.py", 5), ("main", TRAIN, 9)])) == {TRAIN}


def test_without_a_frame_of_the_user_the_outermost_library_is_named_and_marked():
    builder = StackBuilder()
    alone = builder.add(
        [
            ("empty", TORCH, 1),
            ("load", GPT2, 2),
            ("run", EINOPS, 3),
            ("_bootstrap", "/usr/lib/python3.11/threading.py", 9),
        ]
    )
    torch_alone = builder.add([("malloc", "a.cpp", 0), ("linear", TORCH, 7)])
    mine = builder.add([("load", GPT2, 2), ("main", TRAIN, 9)])
    folded = fold(builder.build())

    assert folded.of[alone] == folded.of[torch_alone] == 0
    assert folded.frame(alone) == ("run", EINOPS, 3)
    assert folded.frame(torch_alone) == ("linear", TORCH, 7)
    assert [folded.is_library(int(folded.place[each])) for each in (alone, torch_alone, mine)] == [
        True,
        True,
        False,
    ]


def test_a_recording_in_which_nothing_is_the_users_shows_the_library_that_allocates():
    stacks = stacks_of([("empty", TORCH, 1), ("forward", GPT2, 2), ("main", EINOPS, 3)])
    folded = fold(stacks)

    assert folded.frame(len(stacks) - 1) == ("forward", GPT2, 2)
    assert folded.is_library(int(folded.place[-1]))


def test_a_stack_keeps_its_own_frames_and_the_function_called_last():
    builder = StackBuilder()
    stack = builder.add(
        [
            ("malloc", "CUDACachingAllocator.cpp", 1),
            ("linear", TORCH, 2),
            ("forward", TRAIN, 3),
            ("main", TRAIN, 9),
        ]
    )
    folded = fold(builder.build())

    assert [frame.line for frame in folded.stacks.frames(int(folded.of[stack]))] == [3, 9]
    assert folded.strings[folded.via[stack]] == "linear"


def test_stacks_that_differ_in_the_framework_only_are_one_holder():
    builder = StackBuilder()
    stacks = [builder.add([("linear", TORCH, line), ("forward", TRAIN, 3)]) for line in (1, 2)]
    stacks.append(builder.add([("gelu", TORCH, 3), ("forward", TRAIN, 3)]))
    folded = fold(builder.build())
    held = bytes_by_line(folded, np.array(stacks), np.array([10, 30, 20]), np.array([1, 2, 3]))

    assert held.n_bytes.tolist() == [40, 20]
    assert held.count.tolist() == [3, 3]
    assert [folded.strings[via] for via in held.via] == ["linear", "gelu"]
    assert held.example.tolist() == [stacks[1], stacks[2]]


def test_a_stack_without_a_line_of_the_user_is_kept_as_such():
    builder = StackBuilder()
    stack = builder.add([("malloc", "??", 0)])
    folded = fold(builder.build())
    held = bytes_by_line(folded, np.array([stack, 0]), np.array([5, 7]), np.array([1, 1]))

    assert held.folded_id.tolist() == [0]
    assert held.total_bytes == 12


def test_stacks_that_differ_in_outer_frames_only_are_one_holder():
    builder = StackBuilder()
    inner = [("linear", TORCH, 1), ("forward", TRAIN, 3), ("block", TRAIN, 5)]
    stacks = [builder.add([*inner, ("main", TRAIN, line)]) for line in range(10, 18)]
    other = builder.add([*inner[:2], ("main", TRAIN, 10)])
    folded = fold(builder.build())
    n_bytes = np.arange(1, 10)

    held = bytes_by_line(folded, np.array([*stacks, other, 0]), np.append(n_bytes, 100), np.ones(10, "i8"))

    assert held.n_bytes.tolist() == [100, 36, 9]
    assert held.example.tolist() == [0, stacks[7], other]
    assert held.folded_id.tolist() == folded.place[held.example].tolist()


def test_the_line_that_holds_most_is_summed_over_its_callers_and_calls():
    builder = StackBuilder()
    line, other = ("forward", TRAIN, 3), ("step", TRAIN, 9)
    calls = [[("linear", TORCH, 1), line], [("gelu", TORCH, 2), line], [line, ("main", TRAIN, 20)], [other]]
    stacks = np.array([builder.add(frames) for frames in calls])
    folded = fold(builder.build())
    held = bytes_by_line(folded, np.append(stacks, 0), np.array([30, 20, 10, 50, 99]), np.ones(5, "i8"))

    most = held.most(folded)

    assert most is not None
    assert folded.stacks.frame(most.folded_id).line == 3
    assert (most.n_bytes, most.example) == (60, stacks[0])


def test_without_any_stack_no_line_holds_most():
    folded = fold(StackBuilder().build())

    assert bytes_by_line(folded, np.array([0]), np.array([5]), np.array([1])).most(folded) is None


def test_a_module_that_moves_to_the_device_is_named_by_the_call():
    builder = StackBuilder()
    module = "/opt/conda/lib/python3.11/site-packages/torch/nn/modules/module.py"
    names = ("<lambda>", "_apply", "_apply", "cuda")
    stack = builder.add([*((name, module, 9) for name in names), ("train", TRAIN, 4)])
    folded = fold(builder.build())

    assert folded.strings[folded.via[stack]] == "cuda"


def test_a_forward_of_a_library_has_the_name_of_its_file():
    builder = StackBuilder()
    layers = "/opt/conda/lib/python3.11/site-packages/torch/nn/modules"
    stacks = [
        builder.add([("forward", f"{layers}/{name}.py", 9), ("train", TRAIN, 4)])
        for name in ("linear", "normalization", "linear")
    ]
    folded = fold(builder.build())

    assert [folded.strings[via] for via in folded.via[stacks]] == [
        "linear.forward",
        "normalization.forward",
        "linear.forward",
    ]


def test_functions_that_only_pass_a_call_on_do_not_name_what_was_called():
    builder = StackBuilder()
    stack = builder.add(
        [
            ("__torch_function__", TORCH, 1),
            ("linear", TORCH, 2),
            ("_call_impl", TORCH, 3),
            ("train", TRAIN, 4),
        ]
    )
    folded = fold(builder.build())

    assert folded.strings[folded.via[stack]] == "linear"
