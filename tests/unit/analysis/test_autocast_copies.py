"""Copies of weights that autocast keeps around a whole loop."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

import vramscope
from vramscope.analysis.held_once import held_once

pytestmark = pytest.mark.usefixtures("own_tensors_only")

WIDTH, N_LAYERS = 512, 4


def said_of(path, around_loop, around_forward):
    net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(N_LAYERS)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with vramscope.record(path, device="simulated", quiet=True), around_loop():
        for _ in range(5):
            with around_forward():
                loss = net(torch.randn(16, WIDTH)).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    found = held_once(vramscope.load(path).recordings[0])
    return [each for each in found if each.kind == "autocast_copies"]


def autocast():
    return torch.autocast("cpu", torch.bfloat16)


def test_copies_that_stay_through_the_loop_are_named_with_their_bytes(tmp_path):
    """A copy has two bytes for each number of a weight."""
    (said,) = said_of(tmp_path, autocast, nullcontext)

    assert said.n_bytes == N_LAYERS * WIDTH * WIDTH * 2
    assert "for each forward" in said.advice


@pytest.mark.parametrize("around_forward", [autocast, nullcontext])
def test_without_such_a_block_nothing_is_said(tmp_path, around_forward):
    assert said_of(tmp_path, nullcontext, around_forward) == []
