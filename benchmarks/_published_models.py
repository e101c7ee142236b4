"""Models of published measurements, written from their papers and documentation: decoders and vision transformers.

What a model keeps for its backward depends on how it is written, so the ways that differ are options: the norm's
dtype, how rotary positions are applied, what a checkpoint goes around.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class RootNorm(nn.Module):
    """RMS norm: computed in the ``own`` dtype, in ``float32``, or in float32 with the scale applied ``after`` the cast."""

    def __init__(self, width: int, way: str) -> None:
        super().__init__()
        self.weight, self.way = nn.Parameter(torch.ones(width)), way

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype = x.dtype
        if self.way != "own":
            x = x.float()
        normed = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)
        return normed.to(dtype) * self.weight if self.way == "after" else (self.weight * normed).to(dtype)


def norm(kind: str, width: int) -> nn.Module:
    if kind == "layer":
        return nn.LayerNorm(width)
    return nn.RMSNorm(width, eps=1e-5) if kind == "torch" else RootNorm(width, kind)


class Low(nn.Module):
    """A low-rank addition to a frozen linear layer: rank 8, dropout before it."""

    def __init__(self, width: int, out: int, dropout: float, rank: int = 8) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, out, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(self.down(self.dropout(x))) * 2.0


class WithLow(nn.Module):
    """A frozen linear layer beside its low-rank addition."""

    def __init__(self, base: nn.Linear, dropout: float) -> None:
        super().__init__()
        self.base, self.low = base, Low(base.in_features, base.out_features, dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.low(x)


@dataclass
class Shape:
    """What a decoder is made of."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    inner: int
    groups: int = 0
    """Heads of keys and values; as many as ``heads`` where 0."""
    norm: str = "layer"
    bias: bool = False
    is_gated: bool = True
    is_parallel: bool = False
    norms: int = 2
    rotary: str = "halves"
    rotary_share: float = 1.0
    low_rank: bool = False
    is_tied: bool = False
    head_bias: bool = False

    @property
    def head(self) -> int:
        return self.width // self.heads


def rotated(x: torch.Tensor, way: str, share: float) -> torch.Tensor:
    """``x`` of batch, heads, tokens, width with rotary positions: by ``halves`` in its own dtype, by ``pairs`` in float32, or ``complex``."""
    tokens, width = x.shape[-2], int(x.shape[-1] * share)
    if way == "halves":
        angles = torch.ones(tokens, width, device=x.device, dtype=x.dtype)
        part = x[..., :width]
        one, two = part[..., : width // 2], part[..., width // 2 :]
        turned = (part * angles) + (torch.cat((-two, one), dim=-1) * angles)
        return torch.cat((turned, x[..., width:]), dim=-1)
    pairs = x.float().reshape(*x.shape[:-1], -1, 2)
    if way == "complex":
        turn = torch.ones(tokens, width // 2, device=x.device, dtype=torch.complex64)
        return torch.view_as_real(torch.view_as_complex(pairs) * turn).flatten(-2).type_as(x)
    cosines = torch.ones(tokens, width // 2, device=x.device)
    left = pairs[..., 0] * cosines - pairs[..., 1] * cosines
    right = pairs[..., 1] * cosines + pairs[..., 0] * cosines
    return torch.stack([left, right], -1).flatten(-2).type_as(x)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, self.groups = shape, shape.groups or shape.heads
        keys = self.groups * shape.head
        self.sizes = (shape.width, keys, keys)
        self.joint = nn.Linear(shape.width, sum(self.sizes), bias=shape.bias)
        self.out = nn.Linear(shape.width, shape.width, bias=shape.bias)
        if shape.low_rank:
            self.dropout = nn.Dropout(0.05)
            self.down = nn.Linear(shape.width, 16, bias=False)
            self.up = nn.Conv1d(16, shape.width + keys, 1, groups=2, bias=False)

    def added(self, x: torch.Tensor) -> torch.Tensor:
        """What low ranks add to queries and values; the keys get zeros."""
        low = self.up(self.down(self.dropout(x)).transpose(-2, -1)).transpose(-2, -1)
        padded = x.new_zeros((*x.shape[:-1], sum(self.sizes))).view(-1, sum(self.sizes))
        width, keys = self.sizes[:2]
        at = torch.cat((torch.arange(width), torch.arange(width + keys, width + 2 * keys))).to(x.device)
        return padded.index_copy(1, at, low.reshape(-1, width + keys)).view(*x.shape[:-1], -1) * 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape, (batch, tokens, _) = self.shape, x.shape
        joint = self.joint(x)
        if shape.low_rank:
            joint = joint + self.added(x)
        parts = [
            part.view(batch, tokens, -1, shape.head).transpose(1, 2)
            for part in joint.split(self.sizes, dim=-1)
        ]
        q, k = (rotated(part, shape.rotary, shape.rotary_share) for part in parts[:2])
        v = parts[2]
        if self.groups < shape.heads:
            times = shape.heads // self.groups
            k, v = (part.unsqueeze(2).expand(-1, -1, times, -1, -1).flatten(1, 2) for part in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, -1))


class Inner(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up, self.down = (
            nn.Linear(a, b, bias=shape.bias)
            for a, b in ((shape.width, shape.inner), (shape.inner, shape.width))
        )
        self.gate = nn.Linear(shape.width, shape.inner, bias=shape.bias) if shape.is_gated else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x) if self.gate else F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.is_parallel = shape.is_parallel
        self.one, self.attention, self.inner = norm(shape.norm, shape.width), Attention(shape), Inner(shape)
        self.two = norm(shape.norm, shape.width) if shape.norms == 2 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.one(x)
        attended = self.attention(normed)
        if self.is_parallel:
            return self.inner(self.two(x) if self.two else normed) + attended + x
        x = attended + x
        return self.inner(self.two(x)) + x


class Decoder(nn.Module):
    """A language model; with ``rows`` the head runs on so many tokens at a time and the logits come in a list."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = norm(shape.norm, shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=shape.head_bias)
        if shape.is_tied:
            self.head.weight = self.embedding.weight
        self.checkpoints = False

    def forward(self, ids: torch.Tensor, rows: int = 0) -> list[torch.Tensor]:
        x = self.embedding(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoints else block(x)
        x = self.norm(x)
        return [self.head(part) for part in (x.split(rows, dim=1) if rows else [x])]


class VisionBlock(nn.Module):
    """A block of a vision transformer: torchvision's, with ``nn.MultiheadAttention``, or timm's, with one product for all three."""

    def __init__(self, width: int, heads: int, inner: int, way: str, *, is_gated: bool) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.heads, self.is_gated = heads, is_gated
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner // 2 if is_gated else inner, width)
        self.scales = nn.ParameterList(torch.ones(width) for _ in range(2)) if is_gated else None
        if way == "torchvision":
            self.many = nn.MultiheadAttention(width, heads, batch_first=True)
        else:
            self.joint, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def attended(self, x: torch.Tensor) -> torch.Tensor:
        if hasattr(self, "many"):
            return self.many(x, x, x, need_weights=False)[0]
        batch, tokens, width = x.shape
        q, k, v = self.joint(x).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        attended = self.attended(self.one(x))
        x = x + (attended * self.scales[0] if self.scales else attended)
        inner = self.up(self.two(x))
        if self.is_gated:
            gate, value = inner.chunk(2, dim=-1)
            return x + self.down(F.silu(gate) * value) * self.scales[1]
        return x + self.down(F.gelu(inner))


class Vision(nn.Module):
    """A vision transformer on pictures of 224 pixels."""

    def __init__(
        self, width: int, layers: int, heads: int, inner: int, patch: int, classes: int, **block: object
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, (224 // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(VisionBlock(width, heads, inner, **block) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, classes)
        self.checkpoints = False

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        x = self.patches(pictures).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], dim=1) + self.positions
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True) if self.checkpoints else block(x)
        return self.head(self.norm(x)[:, 0])
