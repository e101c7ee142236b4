"""Weights of attention that a layer computes only to return them."""

import pytest
import torch
from torch import nn

import vramscope
from vramscope.analysis.attention_weights import attention_weights

pytestmark = pytest.mark.usefixtures("own_tensors_only")

BATCH, LENGTH, WIDTH, HEADS = 4, 256, 32, 4


class Layer(nn.Module):
    def __init__(self, needs: bool):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.needs = needs

    def forward(self, x):
        return self.attention(x, x, x, need_weights=self.needs)[0]


def recorded(path, *, needs):
    net = nn.Sequential(Layer(needs), Layer(needs))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with vramscope.record(path, device="simulated", quiet=True):
        for _ in range(3):
            net(torch.randn(BATCH, LENGTH, WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return vramscope.load(path).recordings[0]


def test_weights_that_are_returned_are_named_with_the_line_and_those_that_are_not_asked_for_are_not(tmp_path):
    """A block has a number of four bytes for each pair of words, of each head and sequence."""
    with_weights, without = (
        recorded(tmp_path / "with", needs=True),
        recorded(tmp_path / "without", needs=False),
    )
    (said,) = attention_weights(with_weights)
    truth = with_weights.peak().allocated.n_bytes - without.peak().allocated.n_bytes

    block_bytes = BATCH * HEADS * LENGTH * LENGTH * 4
    assert said.n_bytes % block_bytes == 0
    assert said.n_bytes >= 2 * block_bytes
    assert truth >= block_bytes
    assert (said.file, said.function) == (__file__, "forward")
    assert "need_weights=False" in said.advice
    assert attention_weights(without) == []
