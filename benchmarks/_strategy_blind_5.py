"""Models of the fifth blind trial: written before the intervals became bounds, and run once after that."""

import torch
from _strategy_blind_4 import Stack, run
from torch import Tensor, nn
from torch.nn import functional


class Scan(nn.Module):
    """A gated state space, scanned in a loop over time."""

    def __init__(self, width: int, n_states: int) -> None:
        super().__init__()
        self.norm, self.into = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.rates, self.mix = (
            nn.Linear(width, 2 * n_states),
            nn.Conv1d(width, width, 4, groups=width, padding=3),
        )
        self.decay, self.out = nn.Parameter(torch.zeros(width, n_states)), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y, gate = self.into(self.norm(x)).chunk(2, -1)
        y = functional.silu(self.mix(y.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        b, c = self.rates(y).chunk(2, -1)
        decay, state, outs = torch.exp(-functional.softplus(self.decay)), 0.0, []
        for t in range(x.shape[1]):
            state = state * decay + y[:, t, :, None] * b[:, t, None, :]
            outs.append((state * c[:, t, None, :]).sum(-1))
        return x + self.out(torch.stack(outs, 1) * functional.silu(gate))


def scan(is_checkpointed: bool) -> nn.Module:
    return Stack(
        nn.Embedding(800, 128), [Scan(128, 8) for _ in range(4)], nn.Linear(128, 800), is_checkpointed
    )


class Capsules(nn.Module):
    """Capsules with dynamic routing, by einsum and softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.primary = nn.Conv2d(1, 96, 9), nn.Conv2d(96, 64, 9, 2)
        self.weight = nn.Parameter(torch.zeros(288, 10, 16, 8))

    @staticmethod
    def _squashed(x: Tensor) -> Tensor:
        square = x.square().sum(-1, keepdim=True)
        return square / (1 + square) * x / (square + 1e-8).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        x = self.primary(functional.relu(self.conv(x)))
        x = self._squashed(x.flatten(1).view(len(x), 288, 8))
        votes = torch.einsum("nid,iokd->niok", x, self.weight)
        logits = torch.zeros(*votes.shape[:3], device=x.device)
        for _ in range(3):
            out = self._squashed((logits.softmax(2)[..., None] * votes).sum(1))
            logits = logits + (votes * out[:, None]).sum(-1)
        return out.norm(dim=-1)


class Shared(nn.Module):
    """One layer that runs again and again: weights are shared in depth."""

    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        self.words, self.narrow = nn.Embedding(2000, 64), nn.Linear(64, 192)
        self.layer = nn.TransformerEncoderLayer(192, 6, 768, dropout=0.1, batch_first=True)
        self.head = nn.Linear(192, 2000)
        self._is_checkpointed = is_checkpointed

    def forward(self, x: Tensor) -> Tensor:
        x = self.narrow(self.words(x))
        for _ in range(5):
            x = run(self.layer, self._is_checkpointed, x)
        return self.head(x)


class Prompts(nn.Module):
    """Two towers: images of the batch, and the same prompts in every step whatever the batch."""

    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, 160, 8, 8)
        layer = {"d_model": 160, "nhead": 4, "dim_feedforward": 640, "dropout": 0.0, "batch_first": True}
        self.image = nn.ModuleList(nn.TransformerEncoderLayer(**layer) for _ in range(3))
        self.text = nn.ModuleList(nn.TransformerEncoderLayer(**layer) for _ in range(2))
        self.words = nn.Embedding(600, 160)
        self.register_buffer("prompts", torch.arange(100 * 16).view(100, 16) % 600, persistent=False)
        self._is_checkpointed = is_checkpointed

    def forward(self, x: Tensor) -> Tensor:
        x, y = self.cut(x).flatten(2).transpose(1, 2), self.words(self.prompts)
        for block in self.image:
            x = run(block, self._is_checkpointed, x)
        for block in self.text:
            y = run(block, self._is_checkpointed, y)
        x, y = (functional.normalize(each.mean(1), dim=-1) for each in (x, y))
        return 10 * x @ y.T


class Sampled(nn.Module):
    """A layer whose weights are sampled again in every forward."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.mean, self.spread = (nn.Parameter(torch.zeros(n_out, n_in)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.mean + functional.softplus(self.spread) * torch.randn_like(self.mean)
        return functional.relu(functional.linear(x, weight))


def bayes(is_checkpointed: bool) -> nn.Module:
    blocks = [nn.Sequential(Sampled(768, 768), Sampled(768, 768)) for _ in range(3)]
    return Stack(nn.Linear(128, 768), blocks, nn.Linear(768, 10), is_checkpointed)


class Enhance(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.PReLU(width), nn.Conv2d(width, width, 3, padding=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * self.body(x)


class Last(nn.Module):
    """The colors become the last dimension."""

    def forward(self, x: Tensor) -> Tensor:
        return x.movedim(1, -1)


def resolution(is_checkpointed: bool) -> nn.Module:
    last = nn.Sequential(
        nn.Conv2d(48, 192, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(48, 3, 3, padding=1), Last()
    )
    first = nn.Conv2d(3, 48, 3, padding=1)
    return Stack(first, [Enhance(48) for _ in range(6)], last, is_checkpointed)


class Rays(nn.Module):
    """Points along rays: sines of positions, a network with a skip, and sums weighted by transparency."""

    def __init__(self) -> None:
        super().__init__()
        self.near, self.far = nn.ModuleList(), nn.ModuleList()
        for n in range(4):
            self.near.append(nn.Linear(192 if n else 60, 192))
            self.far.append(nn.Linear(192 if n else 252, 192))
        self.density, self.color = nn.Linear(192, 1), nn.Linear(192, 8)

    def forward(self, x: Tensor) -> Tensor:
        places = x[:, None, :] * torch.linspace(0, 1, 48, device=x.device)[:, None]
        powers = 2.0 ** torch.arange(10, device=x.device)
        waves = (places[..., None] * powers).flatten(-2)
        first = torch.cat((waves.sin(), waves.cos()), -1)
        y = first
        for layer in self.near:
            y = functional.relu(layer(y))
        y = torch.cat((y, first), -1)
        for layer in self.far:
            y = functional.relu(layer(y))
        opaque = 1 - torch.exp(-functional.relu(self.density(y)))
        left = torch.cumprod(1 - opaque + 1e-6, 1)
        return (opaque * left * torch.sigmoid(self.color(y))).sum(1)


class Neighbors(nn.Module):
    """Attention of every node to its neighbors, scores from a sum of two parts."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.value, self.left, self.right = (nn.Linear(width, n) for n in (width, n_heads, n_heads))
        self._n_heads = n_heads

    def forward(self, x: Tensor) -> Tensor:
        value = self.value(x).unflatten(-1, (self._n_heads, -1)).transpose(1, 2)
        scores = self.left(x).transpose(1, 2)[..., :, None] + self.right(x).transpose(1, 2)[..., None, :]
        n = x.shape[1]
        far = (torch.arange(n, device=x.device)[:, None] - torch.arange(n, device=x.device)).abs() > 20
        scores = functional.leaky_relu(scores, 0.2).masked_fill(far, -1e4)
        out = functional.dropout(scores.softmax(-1), 0.3, self.training) @ value
        return functional.elu(out.transpose(1, 2).flatten(2))


def neighbors(is_checkpointed: bool) -> nn.Module:
    blocks = [Neighbors(96, 4) for _ in range(3)]
    return Stack(nn.Linear(24, 96), blocks, nn.Linear(96, 7), is_checkpointed)


class Next(nn.Module):
    """A depthwise convolution, a norm over channels, a wide layer, and a scale for each channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )
        self.scale = nn.Parameter(torch.full((width,), 1e-2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(functional.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class Pooled(nn.Module):
    def __init__(self, width: int, n_out: int) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, n_out)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x.mean((-2, -1))))


def convnext(is_checkpointed: bool) -> nn.Module:
    blocks: list[nn.Module] = [Next(64), Next(64), nn.Conv2d(64, 128, 2, 2), Next(128), Next(128)]
    return Stack(nn.Conv2d(3, 64, 4, 4), blocks, Pooled(128, 200), is_checkpointed)


class Grams(nn.Module):
    """Convolutions of several widths over words, and the maximum over time of each."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(8000, 192)
        self.convs = nn.ModuleList(nn.Conv1d(192, 128, n) for n in (2, 3, 4, 5))
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(512, 20)

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x).transpose(1, 2)
        return self.head(self.drop(torch.cat([functional.relu(conv(x)).amax(-1) for conv in self.convs], -1)))


class Local(nn.Module):
    """Attention of each chunk of words to itself and the chunks beside it."""

    def __init__(self, width: int, n_heads: int, chunk: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 3 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(3 * width, width)
        )
        self._n_heads, self._chunk = n_heads, chunk

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, length, 3, self._n_heads, -1).permute(2, 0, 3, 1, 4)
        c = self._chunk
        q = q.unflatten(2, (-1, c))
        k, v = (functional.pad(each, (0, 0, c, c)).unfold(2, 3 * c, c).transpose(-1, -2) for each in (k, v))
        scores = (q @ k.transpose(-1, -2)) / q.shape[-1] ** 0.5
        y = (scores.softmax(-1) @ v).flatten(2, 3).transpose(1, 2).reshape(n, length, width)
        x = x + self.out(y)
        return x + self.mlp(self.norm2(x))


def local(is_checkpointed: bool) -> nn.Module:
    return Stack(
        nn.Embedding(900, 128), [Local(128, 4, 32) for _ in range(4)], nn.Linear(128, 900), is_checkpointed
    )


class Clip(nn.Module):
    """Three-dimensional convolutions with batch norm, and a sum with what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.space = nn.Conv3d(width, width, (1, 3, 3), padding=(0, 1, 1), bias=False)
        self.time = nn.Conv3d(width, width, (3, 1, 1), padding=(1, 0, 0), bias=False)
        self.norm1, self.norm2 = nn.BatchNorm3d(width), nn.BatchNorm3d(width)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.space(x)), inplace=True)
        return functional.relu(self.norm2(self.time(y)) + x, inplace=True)


def video(is_checkpointed: bool) -> nn.Module:
    last = nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(32, 50))
    return Stack(nn.Conv3d(3, 32, 3, 2, 1), [Clip(32) for _ in range(4)], last, is_checkpointed)


class Table(nn.Module):
    """Each feature becomes a token by a weight of its own; only the first token is read."""

    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.zeros(60, 96)) for _ in range(2))
        self.first = nn.Parameter(torch.zeros(1, 1, 96))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(96, 6, 256, 0.1, functional.gelu, batch_first=True, norm_first=True)
            for _ in range(4)
        )
        self.head = nn.Linear(96, 2)
        self._is_checkpointed = is_checkpointed

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat((self.first.expand(len(x), -1, -1), x[..., None] * self.weight + self.bias), 1)
        for block in self.blocks:
            x = run(block, self._is_checkpointed, x)
        return self.head(functional.relu(x[:, 0]))


class Codes(nn.Module):
    """An autoencoder that replaces each vector by the nearest of a book, and passes gradients through."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(3, 64, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(64, 64, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(64, 32, 3, 1, 1),
        )
        self.up = nn.Sequential(
            nn.ConvTranspose2d(32, 64, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(64, 16, 4, 2, 1)
        )
        self.book = nn.Embedding(256, 32)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x).movedim(1, -1)
        flat = x.flatten(0, -2)
        weight = self.book.weight
        distance = flat.square().sum(-1, keepdim=True) - 2 * flat @ weight.T + weight.square().sum(-1)
        near = self.book(distance.argmin(-1)).view_as(x)
        near = x + (near - x).detach()
        return self.up(near.movedim(-1, 1)).movedim(1, -1)


UNSEEN = {
    "state space, scanned": (scan, lambda n: torch.randint(800, (n, 48), device="cuda"), 16),
    "capsules": (lambda _: Capsules(), lambda n: torch.randn(n, 1, 28, 28, device="cuda"), 48),
    "one layer, five times": (Shared, lambda n: torch.randint(2000, (n, 128), device="cuda"), 16),
    "images and fixed prompts": (Prompts, lambda n: torch.randn(n, 3, 96, 96, device="cuda"), 24),
    "sampled weights": (bayes, lambda n: torch.randn(n, 128, device="cuda"), 512),
    "super-resolution": (resolution, lambda n: torch.randn(n, 3, 48, 48, device="cuda"), 16),
    "rays": (lambda _: Rays(), lambda n: torch.randn(n, 3, device="cuda"), 400),
    "graph attention": (neighbors, lambda n: torch.randn(n, 160, 24, device="cuda"), 8),
    "convolutions with channel norms": (convnext, lambda n: torch.randn(n, 3, 96, 96, device="cuda"), 24),
    "words, several widths": (lambda _: Grams(), lambda n: torch.randint(8000, (n, 120), device="cuda"), 64),
    "local attention": (local, lambda n: torch.randint(900, (n, 256), device="cuda"), 8),
    "video": (video, lambda n: torch.randn(n, 3, 16, 64, 64, device="cuda"), 8),
    "tables": (Table, lambda n: torch.randn(n, 60, device="cuda"), 128),
    "codes": (lambda _: Codes(), lambda n: torch.randn(n, 3, 64, 64, device="cuda"), 48),
}
"""Programs by name: ``make(is_checkpointed)``, ``batch(n)``, and the n to use."""
