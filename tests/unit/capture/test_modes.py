"""Blocks and a program's own dispatch modes are left in any order; none of them stays active."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

import vramscope


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.n += 1
        return func(*args, **(kwargs or {}))


def flags():
    module = torch.utils._python_dispatch
    return [
        value for name, value in vars(module).items() if name.startswith("_is_in_") and type(value) is bool
    ]


@pytest.fixture(autouse=True)
def _clean():
    before = flags()
    yield
    assert _get_current_dispatch_mode_stack() == []
    assert flags() == before


def test_a_mode_that_outlives_the_block_goes_on(tmp_path):
    block, mode = vramscope.record(tmp_path / "run", quiet=True), Counting()
    block.__enter__()
    mode.__enter__()
    block.__exit__(None, None, None)
    assert _get_current_dispatch_mode_stack() == [mode]
    torch.ones(1)
    mode.__exit__(None, None, None)

    assert mode.n == 1


def test_a_mode_from_before_the_block_that_is_left_within_it_is_gone(tmp_path):
    block, mode = vramscope.record(tmp_path / "run", quiet=True), Counting()
    mode.__enter__()
    block.__enter__()
    mode.__exit__(None, None, None)
    block.__exit__(None, None, None)
    torch.ones(1)

    assert mode.n == 0


def test_two_modes_around_a_block_that_are_left_crosswise(tmp_path):
    block, first, second = vramscope.record(tmp_path / "run", quiet=True), Counting(), Counting()
    block.__enter__()
    first.__enter__()
    second.__enter__()
    block.__exit__(None, None, None)
    assert _get_current_dispatch_mode_stack() == [first, second]
    second.__exit__(None, None, None)
    first.__exit__(None, None, None)
