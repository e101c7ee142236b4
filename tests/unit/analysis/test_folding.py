"""Folding keeps the user's lines, whoever wrote the path, and loses no byte."""

import numpy as np
import pytest

from vramscope.analysis.folding import fold, holders, is_framework
from vramscope.model.stacks import StackBuilder

TORCH = "/opt/conda/lib/python3.11/site-packages/torch/nn/functional.py"
TRAIN = "/home/me/train.py"


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
def test_files_of_torch_python_and_cpp_are_the_frameworks(file):
    assert is_framework(file)


@pytest.mark.parametrize(
    "file",
    [
        TRAIN,
        r"D:\work\train.py",
        "/tmp/ipykernel_114/3105878423.py",
        "<ipython-input-3-abc>",
        "/opt/conda/lib/python3.11/site-packages/transformers/models/gpt2/modeling_gpt2.py",
        "/home/me/my_torch_project/model.py",
    ],
)
def test_files_of_the_user_and_of_model_libraries_are_kept(file):
    assert not is_framework(file)


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
    held = holders(folded, np.array(stacks), np.array([10, 30, 20]), np.array([1, 2, 3]))

    assert held.n_bytes.tolist() == [40, 20]
    assert held.count.tolist() == [3, 3]
    assert [folded.strings[via] for via in held.via] == ["linear", "gelu"]
    assert held.example.tolist() == [stacks[1], stacks[2]]


def test_a_stack_without_a_line_of_the_user_is_kept_as_such():
    builder = StackBuilder()
    stack = builder.add([("malloc", "??", 0)])
    folded = fold(builder.build())
    held = holders(folded, np.array([stack, 0]), np.array([5, 7]), np.array([1, 1]))

    assert held.folded_id.tolist() == [0]
    assert held.total_bytes == 12


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
