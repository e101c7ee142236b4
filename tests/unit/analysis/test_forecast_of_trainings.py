"""Forecasts hold on real trainings of the simulated device that run until it is full.

All of them run in one process of their own: the tensors that other tests keep would count from the start, and
fill the small devices.
"""

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import vramscope
from vramscope.analysis.forecast import forecast
from vramscope.model.recording import Recording
from vramscope.model.trace import Action

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.slow

GROWING = [
    ("keeps", 256, "16MiB"),
    ("keeps and varies", 512, "32MiB"),
    ("keeps and evaluates", 1024, "64MiB"),
]
STEADY = ["bounded", "cleared", "varies", "evaluates", "cache that fills up"]


def train(directory: Path, kind: str, width: int, n_steps: int, capacity: str) -> Recording:
    """Record a small training."""
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


def range_of(recording: Recording) -> tuple[int, int] | None:
    found = forecast(recording).forecast
    return found and found.step_range


def of_growing(directory: Path, kind: str, width: int, capacity: str) -> dict[str, object]:
    """Return the step of the limit, and the ranges that are stated after half and four fifths of the way."""
    limit = step_of_limit(train(directory / "whole", kind, width, 80, capacity))
    early = train(directory / "early", kind, width, round(limit * 0.5), capacity)
    late = train(directory / "late", kind, width, round(limit * 0.8), capacity)
    return {"kind": kind, "limit": limit, "ranges": [range_of(early), range_of(late)]}


def all_trainings(directory: Path) -> dict[str, object]:
    return {
        "growing": [of_growing(directory / str(row[1]), *row) for row in GROWING],
        "steady": {kind: range_of(train(directory / kind, kind, 256, 48, "24MiB")) for kind in STEADY},
    }


@pytest.mark.exhaustive
def test_the_limit_of_a_growing_training_lies_in_the_stated_range_and_a_steady_one_has_none(
    tmp_path: Path,
) -> None:
    command = [sys.executable, __file__, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)

    for each in found["growing"]:
        stated = [of for of in each["ranges"] if of is not None]
        assert stated, each
        assert all(low <= each["limit"] <= high for low, high in stated), each
    assert found["steady"] == dict.fromkeys(STEADY)


if __name__ == "__main__":
    print(json.dumps(all_trainings(Path(sys.argv[1]))))
