"""A peak while weights are loaded is none of training's; the truth is a program that ends there."""

import pytest
import torch
from torch import nn

import vramscope
from vramscope.analysis.strategies import strategies

pytestmark = pytest.mark.usefixtures("own_tensors_only")


def recorded(path, file, n_steps):
    """Weights are read beside those of a frozen model, then an image is trained."""
    with vramscope.record(path, device="simulated", quiet=True):
        model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8))).requires_grad_(False)
        state = torch.load(file)
        model.load_state_dict(state)
        del state
        image = torch.randn(8, 512).requires_grad_()
        optimizer = torch.optim.LBFGS([image], max_iter=2)
        for _ in range(n_steps):

            def closure():
                optimizer.zero_grad()
                loss = model(image).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure)
    (found,) = vramscope.load(path).recordings
    return found


def test_frozen_weights_that_are_loaded_are_not_to_be_sharded(tmp_path):
    torch.save(nn.Sequential(*(nn.Linear(512, 512) for _ in range(8))).state_dict(), tmp_path / "weights")
    trained, loaded = (recorded(tmp_path / str(n), tmp_path / "weights", n) for n in (4, 0))
    found = strategies(trained)

    assert found.peak_bytes == loaded.peak().allocated.n_bytes
    assert found.advised == ()
