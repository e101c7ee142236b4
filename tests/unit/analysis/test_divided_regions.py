"""One checkpointed region around several blocks: what a region for each would need, by doing it."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import vramscope
from vramscope.analysis.kept_activations import kept_activations
from vramscope.analysis.strategies import strategies

pytestmark = pytest.mark.usefixtures("own_tensors_only")


class Block(nn.Module):
    """A residual block of two layers."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """Six blocks, in one region or in one for each."""

    def __init__(self, is_divided, width=64):
        super().__init__()
        self.blocks, self.is_divided = nn.ModuleList(Block(width) for _ in range(6)), is_divided

    def body(self, x):
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, x):
        if not self.is_divided:
            return checkpoint(self.body, x, use_reentrant=False)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def recorded(path, is_divided):
    net = Net(is_divided)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with vramscope.record(path, device="simulated", quiet=True):
        for _ in range(3):
            loss = net(torch.randn(512, 64)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    (found,) = vramscope.load(path).recordings
    return found


def test_a_region_of_several_blocks_is_tried_in_regions_of_one(tmp_path):
    truth = recorded(tmp_path / "divided", is_divided=True).peak().allocated.n_bytes
    whole = recorded(tmp_path / "whole", is_divided=False)

    (advice,) = [each for each in strategies(whole).advised if "checkpointing" in each.name]

    assert advice.low_bytes <= truth <= advice.high_bytes
    assert abs(advice.peak_bytes - truth) < 0.1 * truth
    assert "region of its own" in advice.how


def test_regions_of_one_block_are_as_they_should_be(tmp_path):
    found = strategies(recorded(tmp_path / "divided", is_divided=True))

    assert [each.name for each in found.advised if "checkpointing" in each.name] == []


def test_a_region_of_several_blocks_is_told_and_one_for_each_is_not(tmp_path):
    (said,) = kept_activations(recorded(tmp_path / "whole", is_divided=False))

    assert (said.kind, "6 blocks at once" in said.claim) == ("checkpoint_of_all", True)
    assert kept_activations(recorded(tmp_path / "divided", is_divided=True)) == []
