"""One recorded training of ``left_on.py`` in a process of its own, until it ends or memory runs out.

    python benchmarks/_left_on_child.py KIND SEED EVERY DIRECTORY

KIND is one of ``GROWING``, ``STEADY`` or ``PROGRAMS``; EVERY is what ``record(every=...)`` takes, 1 for all
events. Prints one JSON object: the step that failed, what was forecast on the way, and each step's peak by
torch.
"""

import json
import random
import sys
import warnings
from collections import deque
from pathlib import Path
from typing import Any

import torch
from _left_on_programs import PROGRAMS
from torch import Tensor, nn
from torch.nn import functional

import vramscope
from vramscope.analysis.forecast import forecast

STEPS = 1_200
LOOKS = (100, 150, 200, 300, 400, 500, 600, 700, 800, 900, 1_000, 1_100)
"""Steps at which the outlook is asked for."""
HEADROOM_BYTES = 512 << 20


class Training:
    """A small network whose steps keep what the kind says."""

    def __init__(self, kind: str, seed: int, n_until_full: int) -> None:
        self.random = random.Random(seed)
        self.kind = kind
        self.kept_bytes = HEADROOM_BYTES // n_until_full
        self.width = self.random.choice([256, 384, 512])
        layers = [nn.Sequential(nn.Linear(self.width, self.width), nn.GELU()) for _ in range(4)]
        self.model = nn.Sequential(*layers).cuda()
        self.optimizer = self.random.choice([torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD])(
            self.model.parameters(), 1e-4
        )
        self.rows = self.random.choice([128, 256])
        self.kept: Any = deque(maxlen=120) if kind == "deque" else []
        self.by_size: dict[int, Tensor] = {}
        self.state = torch.zeros(self.rows, self.width, device="cuda")

    def step(self, number: int) -> None:
        """Run one training step and keep what the kind keeps."""
        x = torch.randn(self._n_rows(number), self.width, device="cuda")
        y = self.model(x + (self.state if self.kind == "state" else 0))
        loss = functional.mse_loss(y, x)
        loss.backward(retain_graph=self.kind == "state")
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._keep(number, loss)

    def _n_rows(self, number: int) -> int:
        if self.kind == "curriculum":
            return self.rows + number * self.kept_bytes // (self.width * 4 * 12)
        if self.kind == "plateau":
            return self.rows + min(number, 150)
        if self.kind in ("lengths", "noisy"):
            return self.random.randint(self.rows // 2, 2 * self.rows)
        return self.rows

    def _keep(self, number: int, loss: Tensor) -> None:
        n = self.kept_bytes // 4
        if self.kind in ("outputs", "noisy", "deque"):
            self.kept.append(torch.empty(n, device="cuda"))
        elif self.kind == "loss graph":
            extra = torch.empty(n, device="cuda", requires_grad=True)
            self.kept.append((extra * 1.0).sum() + loss.detach())
        elif self.kind == "every tenth" and number % 10 == 9:
            self.kept.append(torch.empty(10 * n, device="cuda"))
        elif self.kind == "evaluation" and number % 50 == 49:
            with torch.no_grad():
                self.kept.append(
                    [
                        self.model(torch.randn(8, self.width, device="cuda")),
                        torch.empty(50 * n, device="cuda"),
                    ]
                )
        elif self.kind == "cache":
            self.by_size.setdefault(number, torch.empty(n, device="cuda"))
        elif self.kind == "bounded cache":
            self.by_size.setdefault(number % 90, torch.empty(n, device="cuda"))
        elif self.kind == "evaluated" and number % 50 == 49:
            self.model.eval()
            with torch.no_grad():
                for _ in range(3):
                    self.model(torch.randn(4 * self.rows, self.width, device="cuda"))
            self.model.train()
        elif self.kind == "growing less":
            self.kept.append(torch.empty(max(1, n * 40 // (number + 40)), device="cuda"))


GROWING = ("outputs", "loss graph", "noisy", "every tenth", "evaluation", "cache", "curriculum")
STEADY = ("constant", "lengths", "deque", "bounded cache", "plateau", "evaluated", "growing less")


def main(kind: str, seed: int, every: str, directory: Path) -> dict[str, Any]:
    """Train, and return what happened."""
    n_until_full = random.Random(seed).randint(250, 900)
    make, _, n_steps = PROGRAMS.get(kind, (lambda: Training(kind, seed, n_until_full).step, "", STEPS))
    step, looks_at = make(), () if kind in PROGRAMS else LOOKS
    for number in range(3):
        step(number)
    limit_bytes = torch.cuda.max_memory_reserved() + HEADROOM_BYTES
    if kind in STEADY:
        limit_bytes += HEADROOM_BYTES
    torch.cuda.set_per_process_memory_fraction(limit_bytes / torch.cuda.mem_get_info()[1])
    options = {} if every == "1" else {"every": "auto" if every == "auto" else int(every)}
    looks, peaks, failed = [], [], None
    with vramscope.record(directory, quiet=True, **options) as recorder:
        for number in range(n_steps):
            if number in looks_at:
                recorder.flush()
                looks.append(_look(directory, number))
            torch.cuda.reset_peak_memory_stats()
            try:
                step(number)
            except torch.cuda.OutOfMemoryError:
                failed = number
                break
            recorder.step()
            peaks.append(torch.cuda.max_memory_allocated())
    return {"kind": kind, "seed": seed, "every": every, "failed": failed, "looks": looks, "peaks": peaks}


def _look(directory: Path, number: int) -> dict[str, Any]:
    recording = vramscope.load(directory).recordings[0]
    outlook = forecast(recording)
    ahead = outlook.forecast
    return {
        "at": number,
        "text": outlook.text,
        "range": None if ahead is None else list(ahead.step_range),
        "step": None if ahead is None else ahead.step,
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))))
