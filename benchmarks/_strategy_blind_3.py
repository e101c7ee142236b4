"""Models of the third blind trial: written, set aside, and run once at the end."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def run(block: nn.Module, is_checkpointed: bool, *inputs: Any) -> Tensor:
    return checkpoint(block, *inputs, use_reentrant=False) if is_checkpointed else block(*inputs)


class GatedLayer(nn.Module):
    """A bias for each distance, a gated MLP, dropout everywhere."""

    def __init__(self, width: int, n_heads: int, length: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.bias = nn.Embedding(2 * length, n_heads)
        self.gate, self.up = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down, self.drop = nn.Linear(2 * width, width), nn.Dropout(0.1)
        self._n_heads = n_heads

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self._n_heads, -1)).permute(2, 0, 3, 1, 4)
        places = torch.arange(length, device=x.device)
        bias = self.bias(places[:, None] - places[None] + length).permute(2, 0, 1)
        scores = torch.matmul(q, k.transpose(2, 3))
        scores = scores + bias
        weights = self.drop(functional.softmax(scores.float(), dim=-1).type_as(scores))
        x = x + self.drop(self.out(torch.matmul(weights, v).transpose(1, 2).flatten(2)))
        y = self.norm2(x)
        return x + self.drop(self.down(functional.gelu(self.gate(y), approximate="tanh") * self.up(y)))


class Gated(nn.Module):
    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(3000, 192)
        self.layers = nn.ModuleList(GatedLayer(192, 4, 160) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(192), nn.Linear(192, 3000, bias=False)
        self._is_checkpointed = is_checkpointed

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for layer in self.layers:
            x = run(layer, self._is_checkpointed, x)
        return self.head(self.norm(x))


class Pyramid(nn.Module):
    """Downsampling, upsampling by interpolation, and sums of skip connections."""

    def __init__(self, _: bool) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, 2, 1) for a, b in ((3, 32), (32, 64), (64, 128)))
        self.side = nn.ModuleList(nn.Conv2d(width, 64, 1) for width in (32, 64, 128))
        self.smooth = nn.ModuleList(nn.Conv2d(64, 64, 3, padding=1) for _ in range(3))
        self.head = nn.Conv2d(64, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        levels = []
        for conv in self.down:
            x = functional.relu(conv(x))
            levels.append(x)
        out = self.side[2](levels[2])
        for n in (1, 0):
            out = functional.interpolate(out, scale_factor=2, mode="nearest") + self.side[n](levels[n])
            out = functional.leaky_relu(self.smooth[n](out))
        return self.head(out).flatten(2).transpose(1, 2)


class ConvBlock(nn.Module):
    """Convolutions for speech: a gate, a depthwise convolution, a swish; then torch's attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.first, self.each = (
            nn.Conv1d(width, 2 * width, 1),
            nn.Conv1d(width, width, 15, padding=7, groups=width),
        )
        self.batch, self.last = nn.BatchNorm1d(width), nn.Conv1d(width, width, 1)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x).transpose(1, 2)
        y = functional.silu(self.batch(self.each(functional.glu(self.first(y), dim=1))))
        x = x + self.last(y).transpose(1, 2)
        z = self.norm2(x)
        return x + self.attention(z, z, z, need_weights=False)[0]


class Speech(nn.Module):
    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        self.first = nn.Linear(40, 128)
        self.blocks = nn.ModuleList(ConvBlock(128) for _ in range(4))
        self.head = nn.Linear(128, 200)
        self._is_checkpointed = is_checkpointed

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = run(block, self._is_checkpointed, x)
        return self.head(x)


class LinearLayer(nn.Module):
    """Attention without a softmax: positive features, and sums along the sequence."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.Mish(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        q, k = functional.elu(self.q(y)) + 1, functional.elu(self.k(y)) + 1
        total = torch.cumsum(k * self.v(y), dim=1) / (torch.cumsum(k, dim=1) + 1e-6)
        x = x + self.out(q * total)
        return x + self.mlp(x)


class LinearAttention(nn.Module):
    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(1500, 128)
        self.layers = nn.ModuleList(LinearLayer(128) for _ in range(4))
        self.head = nn.Linear(128, 1500)
        self._is_checkpointed = is_checkpointed

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for layer in self.layers:
            x = run(layer, self._is_checkpointed, x)
        return self.head(x)


class Bags(nn.Module):
    """Large tables, small layers: the peak is the optimizer's."""

    def __init__(self, _: bool) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(30_000, 48) for _ in range(4))
        self.layers = nn.Sequential(nn.Linear(4 * 48, 256), nn.ReLU(), nn.Linear(256, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(torch.cat([table(x[:, n]) for n, table in enumerate(self.tables)], 1))


UNSEEN = {
    "gated layers, bias of distances": (Gated, lambda n: torch.randint(3000, (n, 160), device="cuda"), 16),
    "pyramid (interpolation)": (Pyramid, lambda n: torch.randn(n, 3, 96, 96, device="cuda"), 24),
    "speech (glu, MultiheadAttention)": (Speech, lambda n: torch.randn(n, 300, 40, device="cuda"), 12),
    "linear attention (cumsum)": (
        LinearAttention,
        lambda n: torch.randint(1500, (n, 200), device="cuda"),
        16,
    ),
    "bags of words": (Bags, lambda n: torch.randint(30_000, (n, 4, 20), device="cuda"), 256),
}
"""Programs by name: ``make(is_checkpointed)``, ``batch(n)``, and the n to use."""
