"""Ten models trained as they are, and with each strategy that is compared with the estimate of it.

``FOLDER/NAME-plain`` is a recording, ``FOLDER/NAME-HOW.json`` the peak of allocated
bytes that torch reported. A name that ends in ``-few`` has a small batch: its peak is in the optimizer's
step.
"""

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
from children import Work, linger
from strategy_models import MODELS as MORE
from strategy_models import Batch, Make
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from workloads import Block

import vramscope


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


def numbers(n: int) -> Tensor:
    return torch.randn(n, 64, device="cuda")


def words(n: int) -> Tensor:
    return torch.randint(1000, (n, 128), device="cuda")


def pictures(n: int) -> Tensor:
    return torch.randn(n, 3, 64, 64, device="cuda")


MODELS: dict[str, tuple[Make, Batch]] = {
    "perceptron": (perceptron, numbers),
    "written_out": (written_out, words),
    "encoder": (encoder, words),
    "convolutions": (convolutions, pictures),
    **MORE,
}
ACTIVATIONS = ("checkpointed", "micro")
RUNS: dict[str, tuple[int, tuple[str, ...]]] = {
    "perceptron": (8192, ACTIVATIONS),
    "written_out": (32, ACTIVATIONS),
    "encoder": (32, ACTIVATIONS),
    "convolutions": (32, ACTIVATIONS),
    "resnet": (16, ("checkpointed", "micro", "eight", "momentum")),
    "unet": (8, ("checkpointed", "micro", "eight")),
    "translator": (32, ("micro",)),
    "gpt": (16, ("checkpointed", "micro", "eight", "momentum")),
    "recurrent": (32, ("micro",)),
    "perceptron-few": (64, ("fused",)),
    "translator-few": (4, ("fused", "eight", "momentum")),
    "recurrent-few": (4, ("fused", "eight", "momentum")),
    "recommender-few": (512, ("fused", "eight", "momentum")),
    "perceptron-rms": (64, ("loop",)),
}
"""Batch and strategies of each."""


class In8Bits(torch.optim.Optimizer):
    """Allocates what bitsandbytes' AdamW8bit does: a byte for each element, 32 bits for each 256 of them."""

    def __init__(self, parameters: Iterator[Tensor]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, _: None = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                is_large = parameter.numel() >= 4096
                kind = torch.uint8 if is_large else torch.float32
                for number in ("1", "2"):
                    state["state" + number] = torch.zeros_like(parameter, dtype=kind)
                    if is_large:
                        state["absmax" + number] = torch.zeros(-(-parameter.numel() // 256), device="cuda")


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "fused": partial(torch.optim.AdamW, fused=True),
    "eight": In8Bits,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "loop": partial(torch.optim.RMSprop, foreach=False),
}


def cases(folder: Path) -> Iterator[tuple[str, Work, dict[str, str]]]:
    for name in RUNS:
        yield f"{name}-runs", partial(run_all, folder, name), {}


def run_all(folder: Path, name: str) -> None:
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)  # else torch 2.11 asks the missing cuDNN for its plan
    for how in ("plain", *RUNS[name][1]):
        run(folder / f"{name}-{how}", name, how)
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    linger()


def run(path: Path, name: str, how: str) -> None:
    make, batch = MODELS[name.partition("-")[0]]
    model = make(how == "checkpointed").cuda()
    usual = torch.optim.RMSprop if name.endswith("-rms") else torch.optim.AdamW
    optimizer = OPTIMIZERS.get(how, usual)(model.parameters())
    gc.collect()
    with vramscope.record(path, quiet=True) if how == "plain" else nullcontext():
        for _ in range(3):
            train(model, optimizer, partial(batch, RUNS[name][0] // n_parts(how)), how)
    path.with_name(f"{path.name}.json").write_text(json.dumps(torch.cuda.max_memory_allocated()))


def n_parts(how: str) -> int:
    return 2 if how == "micro" else 1


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Callable[[], Tensor], how: str) -> None:
    for _ in range(n_parts(how)):
        x = batch()
        loss = loss_of(model(x)) / n_parts(how)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def loss_of(out: Tensor) -> Tensor:
    wanted = torch.zeros(out.shape[:-1], dtype=torch.long, device="cuda")
    return nn.functional.cross_entropy(out.flatten(0, -2), wanted.flatten())
