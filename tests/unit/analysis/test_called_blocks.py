"""Blocks to checkpoint are modules that are called; the truth is the hooks of the program itself."""

import copy
import re

import pytest
import torch
from torch import nn

import vramscope
from vramscope.analysis.strategies import strategies

pytestmark = pytest.mark.usefixtures("own_tensors_only")
WIDTH = 64


def layer():
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))


class Lists(nn.Module):
    """Layers of a list are lists themselves, and what they contain is called."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList([nn.LayerNorm(WIDTH), layer()]) for _ in range(4))

    def forward(self, x):
        for norm, part in self.layers:
            x = x + part(norm(x))
        return x


class Dicts(nn.Module):
    """Layers are dictionaries."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(WIDTH), "part": layer()}) for _ in range(4)
        )

    def forward(self, x):
        for each in self.layers:
            x = x + each["part"](each["norm"](x))
        return x


class Iterated(nn.Module):
    """Layers are sequential, and are iterated over instead of called."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(layer(), nn.LayerNorm(WIDTH)) for _ in range(4))

    def forward(self, x):
        for each in self.layers:
            y = x
            for part in each:
                y = part(y)
            x = x + y
        return x


class Called(nn.Module):
    """Layers are sequential, and called: they allocate nothing themselves."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(WIDTH), layer()) for _ in range(4))

    def forward(self, x):
        for each in self.layers:
            x = x + each(x)
        return x


def advised(path, net, evaluated=None):
    """What is said of checkpointing for a training of *net*, with an evaluation of another at the end."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with vramscope.record(path, device="simulated", quiet=True):
        for _ in range(3):
            net(torch.randn(512, WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        if evaluated is not None:
            with torch.no_grad():
                evaluated(torch.randn(512, WIDTH))
    (found,) = vramscope.load(path).recordings
    (said,) = (each for each in strategies(found).advised if "checkpointing" in each.name)
    return said


@pytest.mark.parametrize(
    ("model", "first"),
    [(Lists, "layers.0.1"), (Dicts, "layers.0.part"), (Iterated, "layers.0.0"), (Called, "layers.0")],
)
def test_blocks_to_checkpoint_are_called(tmp_path, model, first):
    net, called = model(), set()
    for name, module in net.named_modules():
        module.register_forward_hook(lambda *_, name=name: called.add(name))
    named = re.findall(r"layers[\w.]*", advised(tmp_path, net).how)

    assert named[0] == first
    assert set(named) <= called


def test_blocks_that_only_evaluate_are_not_to_be_checkpointed(tmp_path):
    """An average of the weights runs without gradients: four blocks train, not eight."""
    net = Called()
    said = advised(tmp_path, net, copy.deepcopy(net))

    assert said.name == "activation checkpointing of 4 blocks"
    assert "Called" not in said.how
