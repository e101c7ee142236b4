"""Four models trained as they are, under autocast, and with each block checkpointed.

``FOLDER/NAME-plain`` and ``FOLDER/NAME-amp`` are recordings, ``FOLDER/NAME-HOW.json`` the peak of allocated
bytes that torch told.
"""

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
from children import Work
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from workloads import Block

import vramscope

HOWS = ("plain", "amp", "checkpointed")


class Deep(nn.Module):
    """Blocks between a first and a last layer."""

    def __init__(self, first: nn.Module, blocks: list[nn.Module], last: nn.Module, is_checkpointed: bool):
        super().__init__()
        self.first, self.blocks, self.last = first, nn.ModuleList(blocks), last
        self._is_checkpointed = is_checkpointed

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self._is_checkpointed else block(x)
        return self.last(x)


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width),
        )
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(x + self.convolutions(x))


def perceptron(is_checkpointed: bool) -> Deep:
    """Without bias: the buffer of its gradient's sum depends on the device and is not foreseen."""
    linear = partial(nn.Linear, bias=False)
    blocks = [nn.Sequential(linear(512, 2048), nn.GELU(), linear(2048, 512)) for _ in range(4)]
    return Deep(nn.Linear(64, 512), blocks, nn.Linear(512, 10), is_checkpointed)


def written_out(is_checkpointed: bool) -> Deep:
    return Deep(
        nn.Embedding(1000, 256), [Block(256) for _ in range(4)], nn.Linear(256, 1000), is_checkpointed
    )


def encoder(is_checkpointed: bool) -> Deep:
    layers = [nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True) for _ in range(4)]
    return Deep(nn.Embedding(1000, 256), layers, nn.Linear(256, 1000), is_checkpointed)


def convolutions(is_checkpointed: bool) -> Deep:
    last = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return Deep(nn.Conv2d(3, 32, 3, padding=1), [Residual(32) for _ in range(4)], last, is_checkpointed)


def words() -> Tensor:
    return torch.randint(1000, (32, 128), device="cuda")


MODELS: dict[str, tuple[Callable[[bool], Deep], Callable[[], Tensor]]] = {
    "perceptron": (perceptron, lambda: torch.randn(8192, 64, device="cuda")),
    "written_out": (written_out, words),
    "encoder": (encoder, words),
    "convolutions": (convolutions, lambda: torch.randn(32, 3, 64, 64, device="cuda")),
}


def cases(folder: Path) -> Iterator[tuple[str, Work, dict[str, str]]]:
    for name in MODELS:
        for how in HOWS:
            yield f"{name}-{how}", partial(run, folder / f"{name}-{how}", name, how), {}


def run(path: Path, name: str, how: str) -> None:
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)  # else torch 2.11 asks the missing cuDNN for its plan
    make, batch = MODELS[name]
    model = make(how == "checkpointed").cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    gc.collect()
    with vramscope.record(path, quiet=True) if how != "checkpointed" else nullcontext():
        for _ in range(3):
            train(model, optimizer, batch(), how)
    path.with_name(f"{path.name}.json").write_text(json.dumps(torch.cuda.max_memory_allocated()))


def train(model: Deep, optimizer: torch.optim.Optimizer, x: Tensor, how: str) -> None:
    with torch.autocast("cuda", dtype=torch.bfloat16) if how == "amp" else nullcontext():
        loss = loss_of(model(x))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def loss_of(out: Tensor) -> Tensor:
    wanted = torch.zeros(out.shape[:-1], dtype=torch.long, device="cuda")
    return nn.functional.cross_entropy(out.flatten(0, -2), wanted.flatten())
