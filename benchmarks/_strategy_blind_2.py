"""Models of the second blind trial: written, set aside, and run once."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def run(block: nn.Module, is_checkpointed: bool, *inputs: Any) -> Tensor:
    return checkpoint(block, *inputs, use_reentrant=False) if is_checkpointed else block(*inputs)


class Dense(nn.Module):
    """Every layer takes the concatenated results of all layers before it."""

    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 24, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(24 + 12 * n), nn.ReLU(), nn.Conv2d(24 + 12 * n, 12, 3, padding=1, bias=False)
            )
            for n in range(6)
        )
        self.last = nn.Linear(24 + 12 * 6, 10)
        self._is_checkpointed = is_checkpointed

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = torch.cat([x, run(layer, self._is_checkpointed, x)], 1)
        return self.last(x.mean((2, 3)))


class Variational(nn.Module):
    """An encoder, a sample, a decoder."""

    def __init__(self, _: bool) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(3, 32, 4, 2, 1), nn.ELU(), nn.Conv2d(32, 64, 4, 2, 1), nn.ELU(), nn.Flatten()
        )
        self.mean, self.spread = nn.Linear(64 * 16 * 16, 64), nn.Linear(64 * 16 * 16, 64)
        self.grow = nn.Linear(64, 64 * 16 * 16)
        self.up = nn.Sequential(
            nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ELU(), nn.ConvTranspose2d(32, 16, 4, 2, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        code = self.down(x)
        mean, spread = self.mean(code), self.spread(code)
        sample = mean + torch.exp(0.5 * spread) * torch.randn_like(spread)
        return self.up(self.grow(sample).unflatten(1, (64, 16, 16))).permute(0, 2, 3, 1)


class Pair(nn.Module):
    """Two towers, and a score for each pair of the batch: bytes grow quadratically with the batch."""

    def __init__(self, _: bool) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.LayerNorm(1024), nn.Linear(1024, 128))
        self.right = nn.Sequential(nn.Linear(128, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 128))

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.left(x), self.right(x)
        left = left / left.norm(dim=-1, keepdim=True)
        return 20 * left @ (right / right.norm(dim=-1, keepdim=True)).T


class Cross(nn.Module):
    """A few latent vectors attend to a long input, by einsum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.q, self.kv, self.out = (
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
            nn.Linear(width, width),
        )
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(),
                                 nn.Dropout(0.1), nn.Linear(2 * width, width))  # fmt: skip

    def forward(self, x: Tensor, long: Tensor) -> Tensor:
        key, value = self.kv(long).chunk(2, -1)
        weights = functional.softmax(torch.einsum("bqd,bkd->bqk", self.q(self.norm(x)), key) / 11.3, dim=-1)
        x = x + self.out(torch.einsum("bqk,bkd->bqd", weights, value))
        return x + self.mlp(x)


class Perceiver(nn.Module):
    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(16, 128)
        self.latent = nn.Parameter(torch.zeros(64, 128))
        self.blocks = nn.ModuleList(Cross(128) for _ in range(4))
        self.head = nn.Linear(128, 12)
        self._is_checkpointed = is_checkpointed

    def forward(self, x: Tensor) -> Tensor:
        long = self.embed(x)
        x = self.latent.expand(len(x), -1, -1)
        for block in self.blocks:
            x = run(block, self._is_checkpointed, x, long)
        return self.head(x.mean(1))


class Points(nn.Module):
    """Layers on each point, then the maximum over all points."""

    def __init__(self, _: bool) -> None:
        super().__init__()
        self.each = nn.Sequential(
            nn.Conv1d(3, 64, 1), nn.BatchNorm1d(64), nn.ReLU(inplace=True), nn.Conv1d(64, 128, 1),
            nn.BatchNorm1d(128), nn.ReLU(inplace=True), nn.Conv1d(128, 512, 1), nn.BatchNorm1d(512),
        )  # fmt: skip
        self.all = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, 40))

    def forward(self, x: Tensor) -> Tensor:
        return self.all(self.each(x).amax(-1))


class Vectors(nn.Module):
    """torch's own encoder layers with norms first, a token for the class, a mask."""

    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 128, 8, 8)
        self.token, self.places = nn.Parameter(torch.zeros(1, 1, 128)), nn.Parameter(torch.zeros(1, 65, 128))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(128, 4, 512, 0.1, "gelu", norm_first=True, batch_first=True)
            for _ in range(4)
        )
        self.head = nn.Sequential(nn.LayerNorm(128), nn.Linear(128, 30))
        self._is_checkpointed = is_checkpointed

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        for layer in self.layers:
            x = run(layer, self._is_checkpointed, x)
        return self.head(x[:, 0])


def _pictures(size: int, n: int) -> Tensor:
    return torch.randn(n, 3, size, size, device="cuda")


UNSEEN = {
    "dense (concatenations)": (Dense, lambda n: _pictures(48, n), 24),
    "variational autoencoder": (Variational, lambda n: _pictures(64, n), 48),
    "pairs of a batch": (Pair, lambda n: torch.randn(n, 128, device="cuda"), 2048),
    "perceiver (einsum)": (Perceiver, lambda n: torch.randn(n, 1024, 16, device="cuda"), 12),
    "points": (Points, lambda n: torch.randn(n, 3, 1024, device="cuda"), 16),
    "encoder layers, norms first": (Vectors, lambda n: _pictures(64, n), 48),
}
"""Programs by name: ``make(is_checkpointed)``, ``batch(n)``, and the n to use."""
