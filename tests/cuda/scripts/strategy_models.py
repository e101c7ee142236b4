"""Models of many kinds for strategies: each has a ``make(is_checkpointed)``, and its batch."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

Make = Callable[[bool], nn.Module]
Batch = Callable[[int], Tensor]


def run(block: nn.Module, x: Tensor, is_checkpointed: bool) -> Tensor:
    return checkpoint(block, x, use_reentrant=False) if is_checkpointed else block(x)


class Bottleneck(nn.Module):
    def __init__(self, n_in: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(n_in, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.down = nn.Sequential(
            nn.Conv2d(n_in, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(self.relu(self.bn2(self.conv2(y)))))
        y += self.down(x)
        return self.relu(y)


class ResNet(nn.Module):
    """Bottlenecks with ReLUs in place."""

    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        self.layers = nn.ModuleList(
            (Bottleneck(64, 64), Bottleneck(256, 128, 2), Bottleneck(512, 128), Bottleneck(512, 256, 2))
        )
        self.pool, self.last = nn.AdaptiveAvgPool2d(1), nn.Linear(1024, 100)
        self._is_checkpointed = is_checkpointed

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = run(layer, x, self._is_checkpointed)
        return self.last(self.pool(x).flatten(1))


def twice(n_in: int, n_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(n_in, n_out, 3, padding=1),
        nn.GroupNorm(8, n_out),
        nn.SiLU(),
        nn.Conv2d(n_out, n_out, 3, padding=1),
        nn.GroupNorm(8, n_out),
        nn.SiLU(),
    )


class UNet(nn.Module):
    """Skips are kept on the way down and joined on the way up."""

    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        widths = (32, 64, 128)
        self.down = nn.ModuleList(twice(a, b) for a, b in zip((3, 32, 64), widths, strict=True))
        self.middle = twice(128, 256)
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths))
        self.joined = nn.ModuleList(twice(2 * w, w) for w in reversed(widths))
        self.last = nn.Conv2d(32, 5, 1)
        self._is_checkpointed = is_checkpointed

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for block in self.down:
            x = run(block, x, self._is_checkpointed)
            skips.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.middle(x)
        for up, block, skip in zip(self.up, self.joined, reversed(skips), strict=True):
            x = run(block, torch.cat([skip, up(x)], 1), self._is_checkpointed)
        return self.last(x).flatten(2).transpose(1, 2)


class Translator(nn.Module):
    """Encoder and decoder."""

    def __init__(self, _: bool) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(3000, 256), nn.Embedding(3000, 256)
        self.both = nn.Transformer(256, 4, 2, 2, 1024, batch_first=True)
        self.last = nn.Linear(256, 3000)

    def forward(self, words: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1], device=words.device)
        return self.last(self.both(self.source(words), self.target(words), tgt_mask=mask, tgt_is_causal=True))


class GptBlock(nn.Module):
    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)
        self._shape = n_heads, width // n_heads

    def forward(self, x: Tensor) -> Tensor:
        parts = self.attention(self.ln_1(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, self._shape).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.projection(mixed.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.down(functional.gelu(self.up(self.ln_2(x)), approximate="tanh")))


class Gpt(nn.Module):
    """Its last layer shares the weight of its first."""

    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(8000, 256), nn.Embedding(128, 256)
        self.blocks = nn.ModuleList(GptBlock(256, 4) for _ in range(3))
        self.norm, self.last = nn.LayerNorm(256), nn.Linear(256, 8000, bias=False)
        self.last.weight = self.words.weight
        self._is_checkpointed = is_checkpointed

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        for block in self.blocks:
            x = run(block, x, self._is_checkpointed)
        return self.last(self.norm(x))


class Recurrent(nn.Module):
    def __init__(self, _: bool) -> None:
        super().__init__()
        self.words, self.dropout = nn.Embedding(2000, 256), nn.Dropout(0.2)
        self.lstm = nn.LSTM(256, 256, 2, batch_first=True, dropout=0.2)
        self.last = nn.Linear(256, 2000)

    def forward(self, words: Tensor) -> Tensor:
        return self.last(self.dropout(self.lstm(self.dropout(self.words(words)))[0]))


class Recommender(nn.Module):
    """Nearly all of it is one table."""

    def __init__(self, _: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(60_000, 64)
        self.layers = nn.Sequential(nn.Linear(26 * 64, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 2))

    def forward(self, words: Tensor) -> Tensor:
        return self.layers(self.table(words).flatten(1))


def pictures(size: int, n: int) -> Tensor:
    return torch.randn(n, 3, size, size, device="cuda")


def words(n_words: int, length: int, n: int) -> Tensor:
    return torch.randint(n_words, (n, length), device="cuda")


MODELS: dict[str, tuple[Make, Batch]] = {
    "resnet": (ResNet, partial(pictures, 128)),
    "unet": (UNet, partial(pictures, 64)),
    "translator": (Translator, partial(words, 3000, 64)),
    "gpt": (Gpt, partial(words, 8000, 128)),
    "recurrent": (Recurrent, partial(words, 2000, 32)),
    "recommender": (Recommender, partial(words, 60_000, 26)),
}
