"""Models of the fourth blind trial: written after the rules were final, and run once."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def run(block: nn.Module, is_checkpointed: bool, *inputs: Any) -> Tensor:
    return checkpoint(block, *inputs, use_reentrant=False) if is_checkpointed else block(*inputs)


class Stack(nn.Module):
    """A first layer, blocks that may be checkpointed, and a last layer."""

    def __init__(
        self, first: nn.Module, blocks: list[nn.Module], last: nn.Module, is_checkpointed: bool
    ) -> None:
        super().__init__()
        self.first, self.blocks, self.last = first, nn.ModuleList(blocks), last
        self._is_checkpointed = is_checkpointed

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = run(block, self._is_checkpointed, x)
        return self.last(x)


class RotaryBlock(nn.Module):
    """Rotary positions, keys and values shared by groups of heads, scaled_dot_product_attention, SwiGLU."""

    def __init__(self, width: int, n_heads: int, n_groups: int) -> None:
        super().__init__()
        self._n_heads, self._n_groups, self._size = n_heads, n_groups, width // n_heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * n_groups * self._size, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def _rotated(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[2], device=x.device)[:, None]
        steps = 10_000 ** (-torch.arange(0, self._size, 2, device=x.device) / self._size)
        cos, sin = (places * steps).cos(), (places * steps).sin()
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.cat((even * cos - odd * sin, even * sin + odd * cos), -1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q = self.q(y).unflatten(-1, (self._n_heads, -1)).transpose(1, 2)
        k, v = self.kv(y).unflatten(-1, (2, self._n_groups, -1)).permute(2, 0, 3, 1, 4)
        each = self._n_heads // self._n_groups
        k, v = self._rotated(k).repeat_interleave(each, 1), v.repeat_interleave(each, 1)
        y = functional.scaled_dot_product_attention(self._rotated(q), k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def rotary(is_checkpointed: bool) -> nn.Module:
    blocks = [RotaryBlock(192, 6, 2) for _ in range(4)]
    last = nn.Sequential(nn.RMSNorm(192), nn.Linear(192, 2500, bias=False))
    return Stack(nn.Embedding(2500, 192), blocks, last, is_checkpointed)


class Windows(nn.Module):
    """Attention within windows of an image that are shifted by half a window."""

    def __init__(self, width: int, size: int, shift: int) -> None:
        super().__init__()
        self._size, self._shift = size, shift
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.roll(self.norm1(x), (-self._shift, -self._shift), (1, 2))
        n, high, wide, width = y.shape
        y = y.view(n, high // self._size, self._size, wide // self._size, self._size, width)
        y = y.transpose(2, 3).reshape(-1, self._size**2, width)
        y = self.attention(y, y, y, need_weights=False)[0]
        y = y.view(n, high // self._size, wide // self._size, self._size, self._size, width)
        y = y.transpose(2, 3).reshape(n, high, wide, width)
        x = x + torch.roll(y, (self._shift, self._shift), (1, 2))
        return x + self.mlp(self.norm2(x))


class Patches(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).permute(0, 2, 3, 1)


class Mean(nn.Module):
    def __init__(self, width: int, n_out: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, n_out)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.mean((1, 2)))


def windows(is_checkpointed: bool) -> nn.Module:
    blocks = [Windows(96, 8, shift) for shift in (0, 4, 0, 4)]
    return Stack(Patches(96), blocks, Mean(96, 100), is_checkpointed)


class Temporal(nn.Module):
    """Two dilated causal convolutions with normalized weights and dropout."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        weight_norm = nn.utils.parametrizations.weight_norm
        self._pad = 2 * dilation
        self.first = weight_norm(nn.Conv1d(width, width, 3, dilation=dilation))
        self.second = weight_norm(nn.Conv1d(width, width, 3, dilation=dilation))
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(functional.relu(self.first(functional.pad(x, (self._pad, 0)))))
        y = self.drop(functional.relu(self.second(functional.pad(y, (self._pad, 0)))))
        return functional.relu(x + y)


class Swap(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


def temporal(is_checkpointed: bool) -> nn.Module:
    blocks = [Temporal(96, 2**n) for n in range(5)]
    last = nn.Sequential(Swap(), nn.Linear(96, 64))
    return Stack(nn.Conv1d(24, 96, 1), blocks, last, is_checkpointed)


class Experts(nn.Module):
    """Each expert sees every word; a gate weighs the best two."""

    def __init__(self, width: int, n_experts: int) -> None:
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(width), nn.Linear(width, n_experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
            for _ in range(n_experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        scores = self.gate(y)
        best, index = scores.topk(2, -1)
        weights = torch.zeros_like(scores).scatter(-1, index, best.softmax(-1).type_as(scores))
        return x + sum(weights[..., n, None] * expert(y) for n, expert in enumerate(self.experts))


def experts(is_checkpointed: bool) -> nn.Module:
    blocks = [Experts(128, 6) for _ in range(3)]
    return Stack(nn.Embedding(1200, 128), blocks, nn.Linear(128, 1200), is_checkpointed)


class Messages(nn.Module):
    """Messages along the edges of a graph, summed at each node by index_add."""

    def __init__(self, width: int, n_nodes: int) -> None:
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))
        self.update = nn.GRUCell(width, width)
        self.register_buffer("source", torch.arange(8 * n_nodes) % n_nodes, persistent=False)
        self.register_buffer("target", (torch.arange(8 * n_nodes) * 7 + 3) % n_nodes, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        pairs = torch.cat((x[:, self.source], x[:, self.target]), -1)
        message = self.message(pairs)
        total = torch.zeros_like(x, dtype=message.dtype).index_add(1, self.target, message)
        return self.update(total.flatten(0, 1), x.flatten(0, 1)).view_as(x)


def graph(is_checkpointed: bool) -> nn.Module:
    blocks = [Messages(96, 100) for _ in range(3)]
    return Stack(nn.Linear(16, 96), blocks, nn.Linear(96, 12), is_checkpointed)


class Level(nn.Module):
    """GroupNorm and SiLU before each convolution, and a bias from a condition."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, n_in), nn.GroupNorm(8, n_out)
        self.conv1, self.conv2 = nn.Conv2d(n_in, n_out, 3, padding=1), nn.Conv2d(n_out, n_out, 3, padding=1)
        self.skip, self.condition = nn.Conv2d(n_in, n_out, 1), nn.Linear(64, n_out)

    def forward(self, x: Tensor) -> Tensor:
        condition = self.condition(functional.silu(torch.ones(len(x), 64, device=x.device)))
        y = self.conv1(functional.silu(self.norm1(x))) + condition[:, :, None, None]
        return self.skip(x) + self.conv2(functional.silu(self.norm2(y)))


class Diffusion(nn.Module):
    """Levels downward and upward by transposed convolutions, joined by concatenation."""

    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.downs = nn.ModuleList(Level(a, b) for a, b in ((32, 32), (32, 64), (64, 96)))
        self.ups = nn.ModuleList(Level(a, b) for a, b in ((64 + 64, 64), (32 + 32, 32)))
        self.larger = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in ((96, 64), (64, 32)))
        self.last = nn.Conv2d(32, 4, 3, padding=1)
        self._is_checkpointed = is_checkpointed

    def forward(self, x: Tensor) -> Tensor:
        x, kept = self.first(x), []
        for n, level in enumerate(self.downs):
            x = run(level, self._is_checkpointed, functional.avg_pool2d(x, 2) if n else x)
            kept.append(x)
        for n, level in enumerate(self.ups):
            x = torch.cat((self.larger[n](x), kept[1 - n]), 1)
            x = run(level, self._is_checkpointed, x)
        return self.last(x).permute(0, 2, 3, 1)


class Tied(nn.Module):
    """A large vocabulary whose embedding is the head's weight, over highway layers."""

    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(20_000, 128)
        self.layers = nn.ModuleList(nn.Linear(128, 256) for _ in range(4))
        self._is_checkpointed = is_checkpointed

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for layer in self.layers:
            new, gate = layer(x).chunk(2, -1)
            gate = torch.sigmoid(gate)
            x = gate * torch.tanh(new) + (1 - gate) * x
        return functional.linear(x, self.words.weight)


UNSEEN = {
    "rotary positions, grouped heads": (rotary, lambda n: torch.randint(2500, (n, 192), device="cuda"), 16),
    "shifted windows": (windows, lambda n: torch.randn(n, 3, 128, 128, device="cuda"), 16),
    "temporal (dilated, weight norm)": (temporal, lambda n: torch.randn(n, 24, 400, device="cuda"), 24),
    "experts (all of them, best two)": (experts, lambda n: torch.randint(1200, (n, 160), device="cuda"), 12),
    "messages along edges": (graph, lambda n: torch.randn(n, 100, 16, device="cuda"), 16),
    "diffusion (transposed convolutions)": (
        Diffusion,
        lambda n: torch.randn(n, 3, 64, 64, device="cuda"),
        12,
    ),
    "tied embedding, highway": (Tied, lambda n: torch.randint(20_000, (n, 64), device="cuda"), 16),
}
"""Programs by name: ``make(is_checkpointed)``, ``batch(n)``, and the n to use."""
