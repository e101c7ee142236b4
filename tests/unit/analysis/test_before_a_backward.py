"""What is advised to a run that ended before a backward could come: nothing says yet that it trains."""

import contextlib

import pytest
import torch
from torch import nn

import vramscope
from vramscope.analysis.strategies import strategies

IF_IT_TRAINS = "(if it trains)"


class Fails(nn.Module):
    def forward(self, x):
        raise torch.OutOfMemoryError(f"no room after {tuple(x.shape)}")


def of_backward(path, around, *, steps_before=0):
    """The advised changes of a backward, for forwards in *around* of which the last one fails."""
    blocks = [nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)) for _ in range(6)]
    model = nn.Sequential(*blocks)
    recorded = vramscope.record(path, device="simulated", quiet=True)
    with contextlib.suppress(torch.OutOfMemoryError), recorded, around:
        for _ in range(steps_before):
            model(torch.randn(1024, 64)).square().mean().backward()
            model.zero_grad()
        model.append(Fails())
        model(torch.randn(1024, 64))
    (recording,) = vramscope.load(path).recordings
    names = [each.name for each in strategies(recording).advised]
    return [name for name in names if "micro-batches" in name or "checkpointing" in name]


@pytest.mark.parametrize("around", [torch.no_grad(), torch.inference_mode()])
def test_a_forward_without_gradients_that_fails_gets_no_advice_for_a_backward(tmp_path, around):
    assert of_backward(tmp_path / "run", around) == []


def test_a_first_forward_with_gradients_that_fails_gets_it_under_the_condition_that_it_trains(tmp_path):
    advised = of_backward(tmp_path / "run", contextlib.nullcontext())

    assert advised
    assert all(name.endswith(IF_IT_TRAINS) for name in advised)


def test_a_later_forward_of_a_training_that_fails_gets_it_without_a_condition(tmp_path):
    advised = of_backward(tmp_path / "run", contextlib.nullcontext(), steps_before=2)

    assert advised
    assert not any(name.endswith(IF_IT_TRAINS) for name in advised)
