"""A run that fails in the first optimizer.step(): how much of the state is there, and how much is to come."""

import pytest
import torch
from torch import nn

import vramscope
from vramscope.analysis.oom import findings, oom
from vramscope.units import format_bytes

pytestmark = pytest.mark.usefixtures("own_tensors_only")

MIB = 1 << 20


def said(path, optimizer_of, capacity):
    net = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(16)))
    optimizer = optimizer_of(net.parameters())
    try:
        with vramscope.record(path, device="simulated", quiet=True, capacity=capacity):
            for _ in range(2):
                net(torch.randn(8, 512)).sum().backward()
                optimizer.step()
    except torch.OutOfMemoryError:
        pass
    (recording,) = vramscope.load(path).recordings
    return findings(oom(recording))[0]


def test_the_state_that_is_there_and_the_state_to_come_are_counted(tmp_path):
    """Sixteen weights of 1 MiB and their gradients; the state of AdamW takes 32 MiB; 53 are there."""
    found = said(tmp_path / "run", torch.optim.AdamW, "53MiB")

    done = found.evidence["in_use_optimizer_state"]
    assert 0 < done < 32 * MIB
    assert f"{format_bytes(32 * MIB - done)} more are needed" in found.claim
    assert "8 bits" in found.advice


def test_a_failure_elsewhere_says_nothing_of_state(tmp_path):
    found = said(tmp_path / "run", torch.optim.AdamW, "25MiB")

    assert "state" not in found.claim
