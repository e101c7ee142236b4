"""Models of the first blind trial: written, set aside, and run once."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def run(block: nn.Module, is_checkpointed: bool, *inputs: Any) -> Tensor:
    return checkpoint(block, *inputs, use_reentrant=False) if is_checkpointed else block(*inputs)


class VisionBlock(nn.Module):
    """Attention by hand, with a bias for places and dropout on the weights."""

    def __init__(self, width: int, n_heads: int, length: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out, self.drop = nn.Linear(width, width), nn.Dropout(0.1)
        self.bias = nn.Parameter(torch.zeros(n_heads, length, length))
        self.mlp = nn.Sequential(nn.Linear(width, 3 * width), nn.SiLU(), nn.Linear(3 * width, width))
        self._n_heads = n_heads

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (
            part(y).unflatten(-1, (self._n_heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        weights = self.drop(torch.softmax(q @ k.mT * q.shape[-1] ** -0.5 + self.bias, -1))
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Vision(nn.Module):
    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 192, 4, 4)
        self.blocks = nn.ModuleList(VisionBlock(192, 3, 256) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(192), nn.Linear(192, 50)
        self._is_checkpointed = is_checkpointed

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = run(block, self._is_checkpointed, x)
        return self.head(self.norm(x).mean(1))


class RootMeanSquare(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


class LlamaLayer(nn.Module):
    """Norms by hand, rotary position embeddings, torch's own attention, a gated MLP."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = RootMeanSquare(width), RootMeanSquare(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 5 * width // 2, bias=False) for _ in range(2))
        self.down = nn.Linear(5 * width // 2, width, bias=False)
        self._n_heads = n_heads

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self._n_heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = (
            part * cos + torch.cat([-part.chunk(2, -1)[1], part.chunk(2, -1)[0]], -1) * sin for part in (q, k)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(4000, 256)
        self.layers = nn.ModuleList(LlamaLayer(256, 4) for _ in range(4))
        self.norm, self.head = RootMeanSquare(256), nn.Linear(256, 4000, bias=False)
        self._is_checkpointed = is_checkpointed

    def forward(self, words: Tensor) -> Tensor:
        x, length = self.words(words), words.shape[1]
        angles = torch.arange(length, device=x.device)[:, None] / 10000 ** (
            torch.arange(0, 64, 2, device=x.device) / 64
        )
        cos, sin = (wave(angles).repeat(1, 2) for wave in (torch.cos, torch.sin))
        for layer in self.layers:
            x = run(layer, self._is_checkpointed, x, cos, sin)
        return self.head(self.norm(x))


class MixerBlock(nn.Module):
    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.along, self.back = nn.Linear(length, 2 * length), nn.Linear(2 * length, length)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.gelu(self.along(self.norm1(x).transpose(1, 2)))
        x = x + self.back(y).transpose(1, 2)
        return x + self.narrow(functional.gelu(self.wide(self.norm2(x))))


class Mixer(nn.Module):
    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        self.patches = nn.Linear(48, 128)
        self.blocks = nn.ModuleList(MixerBlock(196, 128) for _ in range(5))
        self.head = nn.Linear(128, 20)
        self._is_checkpointed = is_checkpointed

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x)
        for block in self.blocks:
            x = run(block, self._is_checkpointed, x)
        return self.head(x.mean(1))


class WaveBlock(nn.Module):
    """A gated unit: tanh times sigmoid, and two sums."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.both = nn.Conv1d(width, 2 * width, 3, padding=dilation, dilation=dilation)
        self.out, self.skip = nn.Conv1d(width, width, 1), nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = self.both(x).chunk(2, 1)
        y = torch.tanh(a) * torch.sigmoid(b)
        return x + self.out(y), self.skip(y)


class Wave(nn.Module):
    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 48, 1)
        self.blocks = nn.ModuleList(WaveBlock(48, 2**n) for n in range(6))
        self.last = nn.Conv1d(48, 64, 1)
        self._is_checkpointed = is_checkpointed

    def forward(self, x: Tensor) -> Tensor:
        x, total = self.first(x), 0
        for block in self.blocks:
            x, skip = run(block, self._is_checkpointed, x)
            total = total + skip
        return self.last(torch.relu(total)).transpose(1, 2)


class Inverted(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        wide = 4 * width
        self.up, self.norm1 = nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide)
        self.each = nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False)
        self.norm2, self.act = nn.BatchNorm2d(wide), nn.Hardswish()
        self.squeeze, self.excite = nn.Conv2d(wide, 16, 1), nn.Conv2d(16, wide, 1)
        self.down, self.norm3 = nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.norm2(self.each(self.act(self.norm1(self.up(x))))))
        scale = functional.hardsigmoid(
            self.excite(functional.relu(self.squeeze(functional.adaptive_avg_pool2d(y, 1))))
        )
        return x + self.norm3(self.down(y * scale))


class Mobile(nn.Module):
    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 3, 2, 1)
        self.blocks = nn.ModuleList(Inverted(24) for _ in range(4))
        self.head = nn.Linear(24, 30)
        self._is_checkpointed = is_checkpointed

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = run(block, self._is_checkpointed, x)
        return self.head(x.mean((2, 3)))


class Scores(nn.Module):
    """A classifier of pairs by the distances of their embeddings: products, exponentials and logarithms."""

    def __init__(self, _: bool) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Linear(64, 512), nn.LeakyReLU(), nn.Linear(512, 256))
        self.other = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 256))

    def forward(self, x: Tensor) -> Tensor:
        a, b = functional.normalize(self.one(x), dim=-1), functional.normalize(self.other(x), dim=-1)
        scores = a @ b.T / 0.1
        return scores - scores.exp().sum(-1, keepdim=True).log()


def _pictures(size: int, n: int) -> Tensor:
    return torch.randn(n, 3, size, size, device="cuda")


UNSEEN = {
    "vision (attention by hand)": (Vision, lambda n: _pictures(64, n), 16),
    "llama (norms by hand)": (Llama, lambda n: torch.randint(4000, (n, 256), device="cuda"), 8),
    "mixer": (Mixer, lambda n: torch.randn(n, 196, 48, device="cuda"), 32),
    "wave (gated convolutions)": (Wave, lambda n: torch.randn(n, 1, 2000, device="cuda"), 16),
    "mobile (inverted bottlenecks)": (Mobile, lambda n: _pictures(64, n), 32),
    "scores (contrastive)": (Scores, lambda n: torch.randn(n, 64, device="cuda"), 2048),
}
"""Programs by name: ``make(is_checkpointed)``, ``batch(n)``, and the n to use."""
