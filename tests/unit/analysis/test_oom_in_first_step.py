"""A run that fails in the first optimizer.step(): how much of the state is there, and how much is to come."""

import pytest
import torch
from torch import nn

import vramscope
from vramscope.analysis.oom import findings, oom
from vramscope.analysis.strategies import strategies
from vramscope.units import format_bytes

pytestmark = pytest.mark.usefixtures("own_tensors_only")

MIB = 1 << 20


class Momentum(torch.optim.Optimizer):
    """An optimizer written by hand: one value for each parameter, and a temporary that its loop lets go."""

    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state["mean"] = torch.zeros_like(p)
            update = state["mean"] * 0.9 + p.grad
            p.sub_(update)
            state["mean"].copy_(update)


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


@pytest.mark.parametrize(
    ("optimizer_of", "of_it"),
    [
        (lambda params: torch.optim.SGD(params, momentum=0.9), "bitsandbytes.optim.SGD8bit"),
        (torch.optim.RMSprop, "bitsandbytes.optim.RMSprop8bit"),
        (Momentum, "bitsandbytes.optim)"),
    ],
)
def test_one_value_for_each_gradient_takes_as_much_as_the_gradients_do(tmp_path, optimizer_of, of_it):
    """Sixteen weights of 1 MiB and their gradients; the state takes 16 MiB, and 42 have room for ten."""
    found = said(tmp_path / "run", optimizer_of, "42MiB")

    assert "one " in found.claim
    assert "of 16.0 MiB are there" in found.claim
    assert of_it in found.advice


def test_a_state_that_has_no_names_yet_is_told_apart_by_its_moments(tmp_path):
    said(tmp_path / "run", torch.optim.AdamW, "53MiB")
    (recording,) = vramscope.load(tmp_path / "run").recordings
    advised = {each.name: each.saved_bytes for each in strategies(recording).advised}
    (one,) = [saved for name, saved in advised.items() if "moment" in name]

    state = sum(saved for name, saved in advised.items() if "CPU" in name)
    assert 0 < one <= state / 2 + MIB


@pytest.mark.parametrize(("sizes", "is_larger"), [([64] * 5 + [4096], True), ([4096] * 6, False)])
def test_a_batch_that_is_larger_than_all_before_it_is_named(tmp_path, sizes, is_larger):
    """Activations of a batch of 4,096 take 64 MiB beside 8 of weights and gradients."""
    net = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(4)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    try:
        with vramscope.record(tmp_path / "run", device="simulated", quiet=True, capacity="50MiB"):
            for size in sizes:
                (net(torch.randn(size, 512)).relu() * 2).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
    except torch.OutOfMemoryError:
        pass
    (recording,) = vramscope.load(tmp_path / "run").recordings
    found = findings(oom(recording))[0]

    assert (found.cause == "larger_step") is is_larger
    assert ("its inputs take 8.00 MiB, theirs 128 KiB" in found.claim) is is_larger
