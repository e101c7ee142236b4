"""Gradients of activations, which retain_grad() keeps with their tensors."""

import pytest
import torch
from torch import nn

import vramscope
from vramscope.analysis.held_once import held_once
from vramscope.analysis.strategies.gradients import of_parameters
from vramscope.analysis.strategies.trials import prepare
from vramscope.model.marks import Category

pytestmark = pytest.mark.usefixtures("own_tensors_only")

N_LAYERS, ROWS, WIDTH = 4, 1024, 256


class Net(nn.Module):
    def __init__(self, *, retains: bool):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(N_LAYERS))
        self.retains = retains

    def forward(self, x):
        self.seen = []
        for layer in self.layers:
            x = torch.tanh(layer(x))
            self.seen.append(x)
            if self.retains:
                x.retain_grad()
        return x


def recorded(path, *, retains):
    net = Net(retains=retains)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with vramscope.record(path, device="simulated", quiet=True):
        for _ in range(5):
            loss = net(torch.randn(ROWS, WIDTH)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return vramscope.load(path).recordings[0]


def said_of(recording):
    return [each for each in held_once(recording) if each.kind == "gradients_retained"]


def test_gradients_that_stay_with_their_activations_are_named_and_without_retaining_there_are_none(tmp_path):
    (said,) = said_of(recorded(tmp_path / "retains", retains=True))

    assert said.n_bytes == N_LAYERS * ROWS * WIDTH * 4
    assert "retain_grad()" in said.advice
    assert said_of(recorded(tmp_path / "plain", retains=False)) == []


def test_ranks_share_no_gradients_of_activations(tmp_path):
    """What sharding divides are the gradients of the weights and biases of the layers."""
    run = prepare(recorded(tmp_path, retains=True), 8)
    mine = of_parameters(run.assigned, run.lives)

    assert set(run.found.size[mine].tolist()) == {WIDTH * WIDTH * 4, WIDTH * 4}
    assert set(run.found.size[run.category == Category.GRADIENT].tolist()) == {WIDTH * WIDTH * 4, WIDTH * 4}
