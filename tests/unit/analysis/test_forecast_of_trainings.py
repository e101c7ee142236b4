"""Forecasts hold on real trainings of the simulated device that run until it is full."""

import gc
import os
import random
from pathlib import Path

import numpy as np
import pytest

import vramscope
from vramscope.analysis.forecast import Outlook, forecast
from vramscope.model.recording import Recording
from vramscope.model.trace import Action

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.slow,
    # The tensors that other tests keep count from the start, and fill the small devices.
    pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="needs a process of its own: without -n"),
]

GROWING = [
    ("keeps", 256, "24MiB"),
    ("keeps", 512, "40MiB"),
    ("keeps and varies", 256, "24MiB"),
    ("keeps and varies", 512, "40MiB"),
    ("keeps and evaluates", 256, "24MiB"),
    ("keeps and evaluates", 1024, "96MiB"),
]
STEADY = ["bounded", "cleared", "varies", "evaluates", "cache that fills up"]


def train(directory: Path, kind: str, width: int, n_steps: int, capacity: str) -> Recording:
    """Record a small training, without what other tests of this process have left behind."""
    gc.collect()
    torch.manual_seed(width)
    draw = random.Random(width)
    net = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 64))
    optimizer = torch.optim.SGD(net.parameters(), momentum=0.9)
    kept: list[torch.Tensor] = []
    cache: dict[int, torch.Tensor] = {}
    with vramscope.record(directory, device="simulated", capacity=capacity, quiet=True):
        for step in range(n_steps):
            n_rows = draw.randint(32, 160) if "varies" in kind else 64
            batch = torch.randn(n_rows, 64)
            (net(batch) - batch).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if kind.startswith("keeps") or kind in ("bounded", "cleared"):
                kept.append(torch.zeros(width, 256))
            if kind == "bounded":
                kept = kept[-12:]
            if kind == "cleared" and step % 9 == 8:
                kept.clear()
            if kind == "cache that fills up":
                cache.setdefault(draw.randrange(9), torch.zeros(width, 128))
            if "evaluates" in kind and step % 10 == 9:
                with torch.no_grad():
                    net(torch.randn(900, 64))
    return vramscope.load(directory).recordings[0]


def step_of_limit(recording: Recording) -> int:
    """Return the step with the first allocation that the device had no room for."""
    first = int(np.flatnonzero(recording.trace.action == Action.OOM)[0])
    row = int(np.searchsorted(recording.steps.start_event, first, side="right")) - 1
    return int(recording.steps.index[row])


def in_sight(outlook: Outlook) -> tuple[int, int] | None:
    return outlook.forecast and outlook.forecast.step_range


@pytest.mark.parametrize(("kind", "width", "capacity"), GROWING)
def test_the_limit_of_a_training_that_grows_lies_in_the_stated_range(
    tmp_path: Path, kind: str, width: int, capacity: str
) -> None:
    limit = step_of_limit(train(tmp_path / "whole", kind, width, 110, capacity))
    early = train(tmp_path / "early", kind, width, round(limit * 0.5), capacity)
    late = train(tmp_path / "late", kind, width, round(limit * 0.8), capacity)

    ranges = [in_sight(forecast(recording)) for recording in (early, late)]

    assert any(ranges)
    assert all(low <= limit <= high for low, high in filter(None, ranges)), (limit, ranges)


@pytest.mark.parametrize("kind", STEADY)
def test_no_limit_is_in_sight_of_a_training_that_is_steady(tmp_path: Path, kind: str) -> None:
    for n_steps in (24, 48):
        assert in_sight(forecast(train(tmp_path / str(n_steps), kind, 256, n_steps, "24MiB"))) is None
