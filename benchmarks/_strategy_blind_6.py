"""Models of the sixth blind trial: written and set aside after the rules were final, and run once."""

import math

import torch
from _strategy_blind_5 import Stack, run
from torch import Tensor, nn
from torch.nn import functional


class Coupling(nn.Module):
    """A step of a normalizing flow: one half scales and shifts the other, and the halves swap."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width // 2, 512), nn.ReLU(), nn.Linear(512, width))

    def forward(self, x: Tensor) -> Tensor:
        one, other = x.chunk(2, -1)
        scale, shift = self.net(one).chunk(2, -1)
        return torch.cat([other * torch.exp(torch.tanh(scale)) + shift, one], -1)


def flow(is_checkpointed: bool) -> nn.Module:
    return Stack(nn.Linear(64, 256), [Coupling(256) for _ in range(8)], nn.Linear(256, 20), is_checkpointed)


class Spectral(nn.Module):
    """A Fourier layer with the transform written as a product of matrices, beside a pointwise layer."""

    def __init__(self, length: int, width: int, n_modes: int) -> None:
        super().__init__()
        angle = 2 * math.pi * torch.outer(torch.arange(n_modes), torch.arange(length)) / length
        self.register_buffer("cosine", torch.cos(angle))
        self.register_buffer("sine", torch.sin(angle))
        self.mix = nn.Parameter(torch.randn(2, n_modes, width, width) / width)
        self.beside = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        real, imaginary = self.cosine @ x, self.sine @ x
        real = torch.einsum("bkc,kcd->bkd", real, self.mix[0])
        imaginary = torch.einsum("bkc,kcd->bkd", imaginary, self.mix[1])
        return functional.gelu(self.cosine.T @ real + self.sine.T @ imaginary + self.beside(x))


def spectral(is_checkpointed: bool) -> nn.Module:
    return Stack(
        nn.Linear(8, 64), [Spectral(256, 64, 32) for _ in range(5)], nn.Linear(64, 16), is_checkpointed
    )


class Memory(nn.Module):
    """Reads slots of a memory that it also writes, once for each step of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = nn.Parameter(torch.randn(256, 96))
        self.control, self.out = nn.Linear(96 + 48, 96 * 3), nn.Linear(96, 40)

    def forward(self, x: Tensor) -> Tensor:
        memory, read, outs = self.slots.expand(len(x), -1, -1), x.new_zeros(len(x), 96), []
        for t in range(x.shape[1]):
            key, erase, add = self.control(torch.cat([x[:, t], read], -1)).chunk(3, -1)
            weight = torch.softmax((memory @ key[:, :, None]).squeeze(-1), -1)
            memory = memory * (1 - weight[..., None] * torch.sigmoid(erase)[:, None])
            memory = memory + weight[..., None] * add[:, None]
            read = (weight[:, None] @ memory).squeeze(1)
            outs.append(self.out(read))
        return torch.stack(outs, 1)


class Forces(nn.Module):
    """An energy whose gradient by the input is the output, so that backward passes it twice."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(
            nn.Linear(32, 512), nn.SiLU(), nn.Linear(512, 512), nn.SiLU(), nn.Linear(512, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x.requires_grad_()
        return torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)[0]


class Generated(nn.Module):
    """A layer whose weights another network makes, the same for every sample."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.code = nn.Parameter(torch.randn(16))
        self.make = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, width * width))
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        weight = self.make(self.code).view(self.width, self.width)
        return torch.tanh(functional.linear(x, weight))


def generated(is_checkpointed: bool) -> nn.Module:
    return Stack(nn.Linear(40, 192), [Generated(192) for _ in range(5)], nn.Linear(192, 10), is_checkpointed)


class Flowing(nn.Module):
    """A differential equation, integrated by Runge and Kutta's method."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(24, 128), nn.Linear(128, 12)
        self.field = nn.Sequential(nn.Linear(128, 256), nn.Tanh(), nn.Linear(256, 128))

    def forward(self, x: Tensor) -> Tensor:
        y, h = self.into(x), 0.1
        for _ in range(10):
            a = self.field(y)
            b = self.field(y + h / 2 * a)
            c = self.field(y + h / 2 * b)
            y = y + h / 6 * (a + 2 * b + 2 * c + self.field(y + h * c))
        return self.out(y)


class Settled(nn.Module):
    """A layer repeated without gradients until it settles, and once more with them."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(3000, 128)
        self.layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(128, 3000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x)
        y = torch.zeros_like(x)
        with torch.no_grad():
            for _ in range(8):
                y = self.layer(x + y)
        return self.out(self.layer(x + y))


class Adapted(nn.Module):
    """A frozen layer with a trained one of low rank beside it."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.norm, self.base = nn.LayerNorm(width), nn.Linear(width, width)
        self.base.requires_grad_(requires_grad=False)
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + functional.gelu(self.base(y) + self.up(self.down(y)))


def adapted(is_checkpointed: bool) -> nn.Module:
    return Stack(
        nn.Embedding(500, 384), [Adapted(384, 8) for _ in range(6)], nn.Linear(384, 500), is_checkpointed
    )


class Kernels(nn.Module):
    """Distances to inducing points under several widths of a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.points, self.widths = nn.Parameter(torch.randn(1200, 32)), nn.Parameter(torch.ones(4, 1, 1))
        self.out = nn.Linear(4 * 1200, 30)

    def forward(self, x: Tensor) -> Tensor:
        square = x.square().sum(-1, keepdim=True) - 2 * x @ self.points.T + self.points.square().sum(-1)
        kernel = torch.exp(-square / self.widths.square())
        return self.out(kernel.permute(1, 0, 2).flatten(1))


class Transport(nn.Module):
    """Matches two sets by Sinkhorn's iterations in logarithms."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(12, 256), nn.ReLU(), nn.Linear(256, 128))
        self.targets, self.out = nn.Parameter(torch.randn(96, 128)), nn.Linear(96, 9)

    def forward(self, x: Tensor) -> Tensor:
        plan = self.encode(x) @ self.targets.T
        for _ in range(8):
            plan = plan - torch.logsumexp(plan, -1, keepdim=True)
            plan = plan - torch.logsumexp(plan, -2, keepdim=True)
        return self.out(torch.exp(plan))


class Funnel(nn.Module):
    """Layers on half as many tokens each time; all lengths meet again at the end."""

    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(2500, 160), nn.Linear(160, 2500)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(160, 5, 640, dropout=0.1, batch_first=True) for _ in range(4)
        )
        self._is_checkpointed = is_checkpointed

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x)
        length, total = x.shape[1], 0.0
        for layer in self.layers:
            x = run(layer, self._is_checkpointed, x)
            total = total + x.repeat_interleave(length // x.shape[1], 1)
            x = functional.avg_pool1d(x.transpose(1, 2), 2).transpose(1, 2)
        return self.out(total)


class Masked(nn.Conv2d):
    """A convolution that sees only pixels above and to the left."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__(n_in, n_out, 5, padding=2)
        mask = torch.ones(5, 5)
        mask[2, 3:] = 0
        mask[3:] = 0
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(functional.conv2d(x, self.weight * self.mask, self.bias, padding=2))


class Channels(nn.Module):
    """Moves channels last, for a loss at each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Conv2d(48, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x).movedim(1, -1)


def pixels(is_checkpointed: bool) -> nn.Module:
    blocks = [nn.Sequential(Masked(48, 48), Masked(48, 48)) for _ in range(3)]
    return Stack(Masked(3, 48), blocks, Channels(), is_checkpointed)


class Splines(nn.Module):
    """A sum of bumps of each input instead of a product with it."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.register_buffer("grid", torch.linspace(-2, 2, 8))
        self.weight = nn.Parameter(torch.randn(n_out, n_in, 8) / n_in)
        self.norm, self.straight = nn.LayerNorm(n_in), nn.Linear(n_in, n_out)

    def forward(self, x: Tensor) -> Tensor:
        basis = torch.exp(-(((self.norm(x)[..., None] - self.grid) / 0.5) ** 2))
        return torch.einsum("bik,oik->bo", basis, self.weight) + self.straight(functional.silu(x))


def splines(is_checkpointed: bool) -> nn.Module:
    return Stack(
        nn.Linear(20, 128), [Splines(128, 128) for _ in range(4)], nn.Linear(128, 15), is_checkpointed
    )


class Involution(nn.Module):
    """Each place makes the kernel that is applied around it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.kernel, self.mix = nn.Conv2d(width, 4 * 9, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        n, width, height, breadth = x.shape
        y = self.norm(x)
        around = functional.unfold(y, 3, padding=1).view(n, 4, width // 4, 9, height, breadth)
        kernel = self.kernel(y).view(n, 4, 1, 9, height, breadth)
        return x + functional.relu(self.mix((around * kernel).sum(3).view(n, width, height, breadth)))


def involutions(is_checkpointed: bool) -> nn.Module:
    last = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 20))
    return Stack(nn.Conv2d(3, 32, 3, 2, 1), [Involution(32) for _ in range(4)], last, is_checkpointed)


UNSEEN = {
    "normalizing flow": (flow, lambda n: torch.randn(n, 64, device="cuda"), 4096),
    "spectral operator": (spectral, lambda n: torch.randn(n, 256, 8, device="cuda"), 48),
    "written memory": (lambda _: Memory(), lambda n: torch.randn(n, 24, 48, device="cuda"), 16),
    "forces of an energy": (lambda _: Forces(), lambda n: torch.randn(n, 32, device="cuda"), 4096),
    "generated weights": (generated, lambda n: torch.randn(n, 40, device="cuda"), 1024),
    "differential equation": (lambda _: Flowing(), lambda n: torch.randn(n, 24, device="cuda"), 1024),
    "settled layer": (lambda _: Settled(), lambda n: torch.randint(3000, (n, 64), device="cuda"), 32),
    "adapters": (adapted, lambda n: torch.randint(500, (n, 128), device="cuda"), 24),
    "kernels and inducing points": (lambda _: Kernels(), lambda n: torch.randn(n, 32, device="cuda"), 512),
    "optimal transport": (lambda _: Transport(), lambda n: torch.randn(n, 96, 12, device="cuda"), 64),
    "funnel": (Funnel, lambda n: torch.randint(2500, (n, 128), device="cuda"), 16),
    "masked pixels": (pixels, lambda n: torch.randn(n, 3, 32, 32, device="cuda"), 32),
    "splines": (splines, lambda n: torch.randn(n, 20, device="cuda"), 2048),
    "involutions": (involutions, lambda n: torch.randn(n, 3, 64, 64, device="cuda"), 24),
}
"""Programs by name: ``make(is_checkpointed)``, ``batch(n)``, and the n to use."""
