"""Models of the seventh blind trial, by an author who had not read the rules: set aside, and run once."""

import torch
from _strategy_blind_5 import Stack
from torch import Tensor, nn
from torch.nn import functional


class Retention(nn.Module):
    """Attention whose weights fade with the distance, without a softmax."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkvg, self.out = nn.Linear(width, 4 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.register_buffer("fading", 1 - 2.0 ** -torch.linspace(3, 6, n_heads))

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v, gate = self.qkvg(self.first(x)).chunk(4, -1)
        q, k, v = (each.view(n, length, self.n_heads, -1).transpose(1, 2) for each in (q, k, v))
        at = torch.arange(length, device=x.device)
        distance = (at[:, None] - at).clamp(min=0)
        decay = torch.where(at[:, None] >= at, self.fading[:, None, None] ** distance, 0.0)
        y = ((q @ k.transpose(-1, -2)) * decay) @ v
        y = y.transpose(1, 2).reshape(n, length, width)
        x = x + self.out(functional.silu(gate) * y)
        return x + self.down(functional.gelu(self.up(self.second(x)), approximate="tanh"))


def retention(is_checkpointed: bool) -> nn.Module:
    return Stack(
        nn.Embedding(1500, 192), [Retention(192, 6) for _ in range(4)], nn.Linear(192, 1500), is_checkpointed
    )


class Routed(nn.Module):
    """Each token goes to one of the experts only, so sizes depend on the data."""

    def __init__(self, width: int, n_experts: int) -> None:
        super().__init__()
        self.norm, self.choice = nn.LayerNorm(width), nn.Linear(width, n_experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
            for _ in range(n_experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x).flatten(0, -2)
        share, chosen = torch.softmax(self.choice(y), -1).max(-1)
        out = torch.zeros_like(y)
        for number, expert in enumerate(self.experts):
            mine = torch.nonzero(chosen == number).squeeze(-1)
            found = expert(y[mine]) * share[mine, None]
            out = out.index_add(0, mine, found.to(out.dtype))
        return x + out.view_as(x)


def routed(is_checkpointed: bool) -> nn.Module:
    return Stack(nn.Linear(48, 256), [Routed(256, 6) for _ in range(3)], nn.Linear(256, 64), is_checkpointed)


class Triangle(nn.Module):
    """Updates a table of pairs by way of every third place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.left, self.right = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.after, self.out = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        left, right = functional.glu(self.left(y)), functional.glu(self.right(y))
        return x + self.out(self.after(torch.einsum("bikc,bjkc->bijc", left, right)))


class Pairs(nn.Module):
    """Makes a table of pairs of the places of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.row, self.column = nn.Embedding(22, 48), nn.Embedding(22, 48)

    def forward(self, x: Tensor) -> Tensor:
        return self.row(x)[:, :, None] + self.column(x)[:, None]


def triangles(is_checkpointed: bool) -> nn.Module:
    return Stack(Pairs(), [Triangle(48) for _ in range(4)], nn.Linear(48, 32), is_checkpointed)


class Quantized(nn.Module):
    """An autoencoder whose code is the nearest entry of a book, passed straight through."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(3, 64, 4, 2, 1), nn.LeakyReLU(0.1), nn.Conv2d(64, 96, 4, 2, 1), nn.LeakyReLU(0.1)
        )
        self.book = nn.Embedding(400, 96)
        self.decode = nn.Sequential(
            nn.Upsample(scale_factor=2), nn.Conv2d(96, 64, 3, 1, 1), nn.LeakyReLU(0.1),
            nn.Upsample(scale_factor=2), nn.Conv2d(64, 24, 3, 1, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        code = self.encode(x).permute(0, 2, 3, 1)
        nearest = torch.cdist(code.flatten(0, 2), self.book.weight).argmin(-1).view(code.shape[:3])
        found = self.book(nearest)
        return self.decode((code + (found - code).detach()).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class Distilled(nn.Module):
    """A small network that also learns from a frozen large one, whose answer it adds."""

    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Sequential(
            nn.Linear(100, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 40)
        ).requires_grad_(requires_grad=False)
        self.small = nn.Sequential(nn.Linear(100, 300), nn.GELU(), nn.Linear(300, 40))

    def forward(self, x: Tensor) -> Tensor:
        with torch.inference_mode():
            hint = torch.softmax(self.large(x), -1)
        return self.small(x) + torch.log(hint.clone() + 1e-3)


class Tokens(nn.Module):
    """Cuts pictures into patches and merges the most similar tokens after each layer."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 128, 8, 8)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(128, 4, 384, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(3)
        )
        self.out = nn.Linear(128, 50)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
            even, odd = x[:, ::2], x[:, 1::2]
            to = (functional.normalize(odd, dim=-1) @ functional.normalize(even, dim=-1).mT).argmax(-1)
            x = even.scatter_reduce(1, to[..., None].expand_as(odd), odd, "mean", include_self=True)
        return self.out(x.mean(1))


class Folded(nn.Module):
    """Recurrent cells of one's own along both directions, whose states are stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(1200, 96)
        self.there, self.back = nn.GRUCell(96, 160), nn.GRUCell(96, 160)
        self.out = nn.Linear(320, 1200)

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x)
        states = []
        for cell, order in ((self.there, range(x.shape[1])), (self.back, reversed(range(x.shape[1])))):
            h, found = x.new_zeros(len(x), 160), {}
            for t in order:
                h = cell(x[:, t], h)
                found[t] = h
            states.append(torch.stack([found[t] for t in range(x.shape[1])], 1))
        return self.out(torch.cat(states, -1))


class Penalized(nn.Module):
    """Adds the mean of all squared weights to its answer, as regularization written into the model."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(80, 1600), nn.Softplus(), nn.Linear(1600, 1600), nn.Softplus(), nn.Linear(1600, 30)
        )

    def forward(self, x: Tensor) -> Tensor:
        every = torch.cat([each.flatten() for each in self.body.parameters()])
        return self.body(x) + every.square().mean()


class Ranked(nn.Module):
    """Sorts the features of a set, and learns a weight for each rank."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Linear(6, 128), nn.PReLU(), nn.Linear(128, 192))
        self.weight = nn.Parameter(torch.randn(200, 192) / 200)
        self.out = nn.Linear(2 * 192, 20)

    def forward(self, x: Tensor) -> Tensor:
        y = self.each(x)
        ordered = y.sort(1).values
        return self.out(torch.cat([(ordered * self.weight).sum(1), y.topk(8, 1).values.mean(1)], -1))


class Squeezed(nn.Module):
    """A separable convolution, batch norm, and a gate for each channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide = nn.Sequential(
            nn.Conv1d(width, 3 * width, 1, bias=False), nn.BatchNorm1d(3 * width), nn.Hardswish(inplace=True),
            nn.Conv1d(3 * width, 3 * width, 9, padding=4, groups=3 * width, bias=False),
            nn.BatchNorm1d(3 * width), nn.Hardswish(inplace=True),
        )  # fmt: skip
        self.gate = nn.Sequential(
            nn.Linear(3 * width, width // 4), nn.ReLU(), nn.Linear(width // 4, 3 * width)
        )
        self.narrow = nn.Conv1d(3 * width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.wide(x)
        gate = functional.hardsigmoid(self.gate(y.mean(-1)))
        return x + functional.dropout(self.narrow(y * gate[..., None]), 0.1, training=self.training)


class Pooled(nn.Module):
    """The answer for a whole signal."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(2 * 40, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.cat([x.mean(-1), x.amax(-1)], -1))


def signals(is_checkpointed: bool) -> nn.Module:
    return Stack(nn.Conv1d(2, 40, 7, 2, 3), [Squeezed(40) for _ in range(4)], Pooled(), is_checkpointed)


class Replaced(nn.Module):
    """Writes into slices of one tensor that it made itself, and reads windows of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(10))
        self.out = nn.Linear(11 * 64, 18)

    def forward(self, x: Tensor) -> Tensor:
        canvas = x.new_zeros(len(x), 11, 64)
        canvas[:, 0] = x
        for number, layer in enumerate(self.layers):
            canvas[:, number + 1] = torch.tanh(layer(canvas[:, max(0, number - 2) : number + 1].mean(1)))
        return self.out(canvas.flatten(1))


UNSEEN = {
    "retention": (retention, lambda n: torch.randint(1500, (n, 128), device="cuda"), 12),
    "one expert a token": (routed, lambda n: torch.randn(n, 32, 48, device="cuda"), 64),
    "triangles of pairs": (triangles, lambda n: torch.randint(22, (n, 40), device="cuda"), 8),
    "book of codes": (lambda _: Quantized(), lambda n: torch.randn(n, 3, 64, 64, device="cuda"), 16),
    "distilled": (lambda _: Distilled(), lambda n: torch.randn(n, 100, device="cuda"), 2048),
    "merged tokens": (lambda _: Tokens(), lambda n: torch.randn(n, 3, 64, 64, device="cuda"), 48),
    "cells both ways": (lambda _: Folded(), lambda n: torch.randint(1200, (n, 32), device="cuda"), 32),
    "penalized": (lambda _: Penalized(), lambda n: torch.randn(n, 80, device="cuda"), 1024),
    "sorted sets": (lambda _: Ranked(), lambda n: torch.randn(n, 200, 6, device="cuda"), 48),
    "separable signals": (signals, lambda n: torch.randn(n, 2, 512, device="cuda"), 32),
    "written in place": (lambda _: Replaced(), lambda n: torch.randn(n, 64, device="cuda"), 2048),
}
"""Programs by name: ``make(is_checkpointed)``, ``batch(n)``, and the n to use."""
