"""Five models with small batches, and with one twice as large as these."""

import gc
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from children import Work
from torch import nn
from torch.utils.checkpoint import checkpoint

import vramscope

SMALL = [64, 64, 128, 128, 192, 192]
LARGE = [384] * 4


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(500, 256)
        layers = (nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True) for _ in range(2))
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(256, 500)

    def forward(self, words):
        return self.head(self.layers(self.words(words)))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 32 * 32, 10),
    )


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)), (1024,)),
    "deep": (lambda: nn.Sequential(*(nn.Linear(512, 512) for _ in range(8))), (512,)),
    "convolutions": (convolutions, (3, 32, 32)),
    "transformer": (Words, None),
    "checkpointed": (Checkpointed, (1024,)),
}


def train(path: Path, name: str, batches: list[int]) -> None:
    make, shape = MODELS[name]
    model = make().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    gc.collect()
    with vramscope.record(path, quiet=True):
        for batch in batches:
            words = torch.randint(500, (batch, 32), device="cuda")
            x = words if shape is None else torch.randn(batch, *shape, device="cuda")
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def cases(folder: Path) -> Iterator[tuple[str, Work, dict[str, str]]]:
    yield "batches", partial(run, folder), {}


def run(folder: Path) -> None:
    torch.backends.cudnn.enabled = False
    for model in MODELS:
        train(folder / f"{model}-small", model, SMALL)
        train(folder / f"{model}-large", model, LARGE)
