"""Forwards that wait for a backward are those of the thread that runs it."""

import numpy as np
import pytest
import torch
from torch import nn

import vramscope
from vramscope.analysis.accumulation import accumulation
from vramscope.model.marks import Phase, Phases, Steps
from vramscope.model.recording import Recording
from vramscope.model.trace import Action, Trace

N_STEPS, N_FORWARDS = 3, 3
_EVENTS = 2 * N_FORWARDS
"""Number of events of a step: each forward allocates one block, and the last backward frees all."""


def trained(threads):
    """Three forwards, one in each of the threads, then a backward in each, for some steps."""
    blocks = np.arange(N_FORWARDS)
    start = np.concatenate([blocks, np.full(N_FORWARDS, N_FORWARDS)])
    end = np.append(start[:-1] + np.repeat([1, 0], N_FORWARDS)[:-1], _EVENTS)
    first = _EVENTS * np.repeat(np.arange(N_STEPS), _EVENTS)
    return Recording(
        trace=Trace.of(
            action=[*[Action.ALLOC] * N_FORWARDS, *[Action.FREE_REQUESTED] * N_FORWARDS] * N_STEPS,
            address=[*blocks, *blocks] * N_STEPS,
            size=[1 << 20] * _EVENTS * N_STEPS,
            block_size=[1 << 20] * _EVENTS * N_STEPS,
        ),
        steps=Steps.of(
            index=np.arange(N_STEPS),
            start_event=_EVENTS * np.arange(N_STEPS),
            end_event=_EVENTS * np.arange(1, N_STEPS + 1),
        ),
        phases=Phases.of(
            phase=[*[Phase.FORWARD] * N_FORWARDS, *[Phase.BACKWARD] * N_FORWARDS] * N_STEPS,
            step=np.repeat(np.arange(N_STEPS), _EVENTS),
            start_event=np.tile(start, N_STEPS) + first,
            end_event=np.tile(end, N_STEPS) + first,
            thread=[*threads, *threads] * N_STEPS,
        ),
    )


@pytest.mark.parametrize(("threads", "n_forwards"), [((1, 1, 1), [3]), ((1, 2, 3), [])])
def test_forwards_of_three_threads_wait_for_three_backwards(threads, n_forwards):
    assert [each.evidence["forwards"] for each in accumulation(trained(threads))] == n_forwards


def validated(path, *, has_gradients):
    """Two epochs of training; after each, the losses of eight batches are summed as they come."""
    net = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with vramscope.record(path, device="simulated", quiet=True):
        for _ in range(2):
            for _ in range(2):
                optimizer.zero_grad()
                net(torch.randn(256, 64)).square().mean().backward()
                optimizer.step()
            with torch.set_grad_enabled(has_gradients):
                total = sum(net(torch.randn(256, 64)).square().mean() for _ in range(8))
            float(total.detach())
            del total
    (recording,) = vramscope.load(path).recordings
    return recording


@pytest.mark.usefixtures("own_tensors_only")
def test_a_validation_with_gradients_keeps_what_no_backward_uses(tmp_path):
    """Each forward but the running one keeps two results of tanh, 256 × 512 numbers of four bytes each."""
    (found,) = accumulation(validated(tmp_path / "with", has_gradients=True))

    assert (found.kind, found.evidence["forwards"]) == ("graphs_without_backward", 7)
    assert found.n_bytes == pytest.approx(7 * 2 * 256 * 512 * 4, rel=0.15)
    assert accumulation(validated(tmp_path / "without", has_gradients=False)) == []
