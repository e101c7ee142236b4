"""Blocks to checkpoint are modules that are called; the truth is the hooks of the program itself."""

import copy
import re

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

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


class Attention(nn.Module):
    """A block that returns its attention maps, or lets go of them."""

    def __init__(self, is_kept):
        super().__init__()
        self.into, self.out, self.is_kept = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH), is_kept

    def forward(self, x):
        query, key = self.into(x).chunk(2, -1)
        scores = query @ key.mT
        scaled = scores / 8
        maps = scaled.softmax(-1)
        mixed = self.out(maps @ x)
        return mixed, (scores, scaled, maps) if self.is_kept else ()


class Maps(nn.Module):
    """Every block may be checkpointed; what the blocks return lives as long as the forward."""

    def __init__(self, is_kept, is_checkpointed=False):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(Attention(is_kept)) for _ in range(24))
        self.is_checkpointed = is_checkpointed

    def forward(self, x):
        returned = []
        for each in self.layers:
            y, maps = checkpoint(each, x, use_reentrant=False) if self.is_checkpointed else each(x)
            x = x + y
            returned.append(maps)
        return x.square().mean()


@pytest.mark.parametrize("is_kept", [True, False])
def test_blocks_that_return_what_they_made_save_nothing_for_certain(tmp_path, is_kept):
    """The truth is the peak of the program with the edit."""
    found = {}
    for name in ("plain", "checkpointed"):
        net, path = Maps(is_kept, name == "checkpointed"), tmp_path / name
        with vramscope.record(path, device="simulated", quiet=True):
            for _ in range(3):
                net(torch.randn(2, 256, WIDTH)).backward()
        (found[name],) = vramscope.load(path).recordings
    plain, edited = (each.step_peaks().per_step.allocated_bytes.max() for each in found.values())
    said = strategies(found["plain"])
    (of,) = (each for each in said.advised + said.undecided if "checkpointing" in each.name)

    assert (edited < 0.75 * plain) == (not is_kept)
    assert of.low_bytes <= edited <= of.high_bytes
    assert (of in said.undecided) == is_kept


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
