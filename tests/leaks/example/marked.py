"""A project of somebody's, with marked tests, some of which are to fail. Copied to where pytest finds it."""

import pytest
import torch
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Trainer:
    def __init__(self):
        self.model = nn.Linear(128, 512).to(DEVICE)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.outputs = []

    def step(self, *, keep):
        out = self.model(torch.randn(64, 128, device=DEVICE))
        out.mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if keep:
            self.outputs.append(out)


@pytest.fixture
def trainer():
    return Trainer()


@pytest.mark.vram_no_leak(steps=10)
def test_fine_step(trainer):
    trainer.step(keep=False)


@pytest.mark.vram_no_leak(steps=10)
def test_leaking_step(trainer):
    trainer.step(keep=True)


@pytest.mark.vram_no_leak
def test_fine_loop(trainer):
    for _ in range(12):
        trainer.step(keep=False)


@pytest.mark.vram_no_leak
def test_leaking_loop(trainer):
    for _ in range(12):
        trainer.step(keep=True)


@pytest.mark.vram_limit("2 MiB")
def test_small():
    torch.ones(256, 1024, device=DEVICE)


@pytest.mark.vram_limit("2 MiB")
def test_large():
    torch.ones(1024, 1024, device=DEVICE)


@pytest.mark.vram_limit("2 MiB")
def test_own_failure():
    assert torch.ones(2, device=DEVICE).shape == (3,)


@pytest.mark.vram_no_leak(steps=3)
def test_asked_wrongly():
    pass


def test_unmarked():
    pass


@pytest.mark.parametrize("device", ["cuda" if DEVICE == "cuda" else "simulated"])
def test_device(device):
    assert torch.cuda.is_available() == (device == "cuda")
