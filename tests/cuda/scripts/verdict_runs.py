"""Programs on which a verdict of ``fit`` is easily wrong, each with the run that tells the truth.

``FOLDER/verdict-NAME`` is a recording, ``FOLDER/verdict-NAME.json`` torch's peak of allocated bytes; for a
run that ran out of memory it is null.
"""

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch
from children import Work, linger
from strategy_models import Gpt, words
from torch import Tensor, nn

import vramscope

MIB = 1 << 20


class ByHand(nn.Module):
    """Attention in one line."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 64)
        self.parts = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x)
        for q, k in zip(self.parts[::2], self.parts[1::2], strict=True):
            x = x + (q(x) @ k(x).transpose(-1, -2)).softmax(-1) @ x
        return x


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 16, 3), nn.Conv2d(16, 32, 3)
        self.last = nn.Linear(32 * 24 * 24, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.second(torch.relu(self.first(x)))).flatten(1))


def cases(folder: Path) -> Iterator[tuple[str, Work, dict[str, str]]]:
    works: dict[str, Work] = {
        "lengths": partial(trained, ByHand, [(4, 128)] * 2 + [(4, 256)] * 2),
        "lengths-512": partial(trained, ByHand, [(4, 512)] * 4),
        "evaluated": evaluated,
        "evaluated-half": partial(evaluated, n_evaluated=300),
        "first-forward": partial(trained, partial(Gpt, False), [(16, 128)], n_words=8000, limit_mib=160),
        "first-forward-unlimited": partial(trained, partial(Gpt, False), [(16, 128)] * 2, n_words=8000),
    }
    for name, work in works.items():
        yield f"verdict-{name}", partial(run, folder / f"verdict-{name}", work), {}


def run(path: Path, work: Callable[[Path], None]) -> None:
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    answer = path.with_name(f"{path.name}.json")
    answer.write_text("null")
    with suppress(torch.OutOfMemoryError):
        work(path)
        answer.write_text(json.dumps(torch.cuda.max_memory_allocated()))
    linger()


def trained(
    make: Callable[[], nn.Module],
    shapes: list[tuple[int, int]],
    path: Path,
    *,
    n_words: int = 100,
    limit_mib: int = 0,
) -> None:
    model = make().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    gc.collect()
    if limit_mib:
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(limit_mib * MIB / total)
    with vramscope.record(path, quiet=True):
        for n, length in shapes:
            loss = model(words(n_words, length, n)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            del loss


def evaluated(path: Path, *, n_evaluated: int = 600) -> None:
    """Training with 20 pictures, evaluation with many more."""
    model = Pictures().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    gc.collect()
    with vramscope.record(path, quiet=True):
        for _ in range(2):
            model.train()
            for _ in range(3):
                loss = model(torch.randn(20, 1, 28, 28, device="cuda")).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                del loss
            model.eval()
            with torch.no_grad():
                for _ in range(1200 // n_evaluated):
                    model(torch.randn(n_evaluated, 1, 28, 28, device="cuda"))
