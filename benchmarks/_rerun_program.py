"""One training of one of twelve models: ``python _rerun_program.py MODEL --batch-size N --seq-len N``.

``--how`` changes it as its author would; ``fit --rerun`` gets the program without it. ``--truth FILE`` writes
torch's own peaks, ``--record DIR`` records it.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 -- as everybody writes it
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH, WORDS, LAYERS = 256, 3000, 6


def run(block: nn.Module, is_checkpointed: bool, *given: Tensor) -> Tensor:
    return checkpoint(block, *given, use_reentrant=False) if is_checkpointed else block(*given)


class Attention(nn.Module):
    def __init__(self, heads: int = 4, is_causal: bool = True, kind: type[nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        self.norm, self.heads, self.is_causal = kind(WIDTH), heads, is_causal
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        return x + self.out(mixed.transpose(1, 2).reshape(n, length, WIDTH))


class Mlp(nn.Module):
    def __init__(
        self, width: int = WIDTH, kind: type[nn.Module] = nn.LayerNorm, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.norm, self.up, self.down = kind(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))


class Swiglu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.gate, self.up, self.down = (
            nn.Linear(*of, bias=False) for of in ((WIDTH, 704), (WIDTH, 704), (704, WIDTH))
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Biased(nn.Module):
    """Attention by hand, with a bias for each distance."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
        )
        self.bias = nn.Parameter(torch.zeros(4, 1024))

    def forward(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        q, k, v = (y.view(n, length, 4, -1).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, -1))
        place = torch.arange(length, device=x.device)
        bias = self.bias[:, (place[:, None] - place).abs()]
        weights = F.dropout((q @ k.transpose(-1, -2) / 8 + bias).softmax(-1), 0.1, self.training)
        return x + self.out((weights @ v).transpose(1, 2).reshape(n, length, WIDTH))


class Experts(nn.Module):
    """Each word goes to two of four experts, by weights that are zero for the others."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.router = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4)
        self.up = nn.Parameter(torch.randn(4, WIDTH, 512) * 0.02)
        self.down = nn.Parameter(torch.randn(4, 512, WIDTH) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        best, which = self.router(y).softmax(-1).topk(2, -1)
        weight = torch.zeros(*x.shape[:2], 4, device=x.device, dtype=best.dtype).scatter(-1, which, best)
        hidden = F.silu(torch.einsum("ntw,ewh->nteh", y, self.up))
        return x + torch.einsum("nteh,ehw,nte->ntw", hidden, self.down, weight.to(hidden.dtype))


class Scan(nn.Module):
    """A linear recurrence as a cumulated sum."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.into, self.out = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 1024), nn.Linear(512, WIDTH)
        self.decay = nn.Parameter(torch.zeros(512))

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.into(self.norm(x)).chunk(2, -1)
        steps = torch.arange(x.shape[1], device=x.device)[:, None] * F.softplus(self.decay)
        state = torch.cumsum(value * torch.exp(steps.clamp(max=20)), 1) * torch.exp(-steps.clamp(max=20))
        return x + self.out(state * torch.sigmoid(gate))


class Mixing(nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.norm, self.words, self.mlp = nn.LayerNorm(WIDTH), nn.Linear(length, length), Mlp(dropout=0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(x + self.words(self.norm(x).transpose(1, 2)).transpose(1, 2))


class Modulated(nn.Module):
    """A block of a diffusion transformer, whose norms a time sets."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mlp, self.time = Attention(is_causal=False), Mlp(), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        shift, scale = self.time(F.silu(time)).unsqueeze(1).chunk(2, -1)
        return self.mlp(self.attention(x * (1 + scale) + shift))


class Stack(nn.Module):
    """Words, or numbers, through blocks to a head."""

    def __init__(
        self, blocks: list[nn.Module], is_checkpointed: bool, first: nn.Module, last: nn.Module
    ) -> None:
        super().__init__()
        self.first, self.blocks, self.last = first, nn.ModuleList(blocks), last
        self.is_checkpointed = is_checkpointed

    def forward(self, x: Tensor, *more: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = run(block, self.is_checkpointed, x, *more)
        return self.last(x)


class Translator(nn.Module):
    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        layer = partial(dict, nhead=4, dim_feedforward=1024, batch_first=True, dropout=0.1)
        self.words, self.is_checkpointed = nn.Embedding(WORDS, WIDTH), is_checkpointed
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, **layer()) for _ in range(3))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(WIDTH, **layer()) for _ in range(3))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        memory = x = self.words(words)
        for layer in self.encoder:
            memory = run(layer, self.is_checkpointed, memory)
        for layer in self.decoder:
            x = run(layer, self.is_checkpointed, x, memory)
        return self.head(x)


class Recommender(nn.Module):
    """Tables of embeddings, products of all pairs, and a tower."""

    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(20_000, 64) for _ in range(8))
        self.tower = nn.ModuleList(Mlp(64 + 64) for _ in range(4))
        self.last, self.is_checkpointed = nn.Linear(128, 2), is_checkpointed

    def forward(self, words: Tensor) -> Tensor:
        found = torch.stack([table(words[:, at]) for at, table in enumerate(self.tables)], 1)
        x = (found @ found.transpose(1, 2)).flatten(1).repeat(1, 2)
        for block in self.tower:
            x = run(block, self.is_checkpointed, x)
        return self.last(x)


class Residual(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(n, n, 3, padding=1), nn.Conv2d(n, n, 3, padding=1)
        self.norm = nn.GroupNorm(8, n)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.two(F.relu(self.norm(self.one(x))))


def words(n: int, length: int) -> tuple[Tensor, ...]:
    return (torch.randint(WORDS, (n, length), device="cuda"),)


def numbers(n: int, length: int) -> tuple[Tensor, ...]:
    return (torch.randn(n, length, 64, device="cuda"),)


def noisy(n: int, length: int) -> tuple[Tensor, ...]:
    return (*numbers(n, length), torch.randn(n, WIDTH, device="cuda"))


def categories(n: int, _: int) -> tuple[Tensor, ...]:
    return (torch.randint(20_000, (n, 8), device="cuda"),)


def pictures(n: int, _: int) -> tuple[Tensor, ...]:
    return (torch.randn(n, 3, 32, 32, device="cuda"),)


def language(make: Callable[[], nn.Module], again: bool) -> nn.Module:
    return Stack(
        [make() for _ in range(LAYERS)],
        again,
        nn.Embedding(WORDS, WIDTH),
        nn.Linear(WIDTH, WORDS, bias=False),
    )


def signal(make: Callable[[], nn.Module], again: bool) -> nn.Module:
    return Stack([make() for _ in range(LAYERS)], again, nn.Linear(64, WIDTH), nn.Linear(WIDTH, 64))


def convolutions(again: bool) -> nn.Module:
    last = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return Stack([Residual(32) for _ in range(4)], again, nn.Conv2d(3, 32, 3, padding=1), last)


class Adapted(nn.Module):
    """A frozen linear layer with an adapter of rank 16 beside it, as peft writes it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.weight, self.bias = base, base.weight, base.bias
        self.a = nn.Linear(base.in_features, 16, bias=False)
        self.b = nn.Linear(16, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.b(self.a(x)) * 2.0


def adapt(model: nn.Module) -> nn.Module:
    model.requires_grad_(False)
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is nn.Linear and not isinstance(parent, Adapted):
                setattr(parent, name, Adapted(layer))
    return model


def shard(model: nn.Module) -> nn.Module:
    """Shard each block, then the whole, as the first of eight ranks in a group that sends nothing."""
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    for name in ("blocks", "encoder", "decoder", "tower"):
        for block in getattr(model, name, ()):
            fully_shard(block)
    return fully_shard(model)


ENCODER = partial(nn.TransformerEncoderLayer, WIDTH, 4, 1024, 0.1, batch_first=True, norm_first=True)
MODELS = {
    "gpt": (lambda again, _: language(lambda: nn.Sequential(Attention(), Mlp()), again), words),
    "llama": (
        lambda again, _: language(lambda: nn.Sequential(Attention(kind=nn.RMSNorm), Swiglu()), again),
        words,
    ),
    "encoder": (lambda again, _: language(ENCODER, again), words),
    "distances": (lambda again, _: language(lambda: nn.Sequential(Biased(), Mlp(dropout=0.1)), again), words),
    "experts": (lambda again, _: language(lambda: nn.Sequential(Attention(), Experts()), again), words),
    "scan": (lambda again, _: language(Scan, again), words),
    "mixer": (lambda again, length: signal(lambda: Mixing(length), again), numbers),
    "denoiser": (lambda again, _: signal(Modulated, again), noisy),
    "perceptron": (lambda again, _: signal(lambda: Mlp(dropout=0.2), again), numbers),
    "translator": (lambda again, _: Translator(again), words),
    "recommender": (lambda again, _: Recommender(again), categories),
    "convolutions": (lambda again, _: convolutions(again), pictures),
}
HOW = ("plain", "amp", "checkpointed", "both", "micro", "fused", "loop", "momentum", "lora", "sharded")


def loss_of(out: Tensor, given: tuple[Tensor, ...], name: str) -> Tensor:
    if name in ("recommender", "convolutions"):
        return F.cross_entropy(out, torch.zeros(len(out), dtype=torch.long, device="cuda"))
    if MODELS[name][1] is words:
        return F.cross_entropy(out.flatten(0, 1), given[0].flatten())
    return F.mse_loss(out, given[0])


def main(given_arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--how", choices=HOW, default="plain")
    parser.add_argument("--truth", type=Path)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args(given_arguments)
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    how, parts = args.how, 2 if args.how == "micro" else 1
    make, batch = MODELS[args.model]
    if args.record is not None:
        import vramscope

        recording = vramscope.record(args.record, quiet=True)
    with nullcontext() if args.record is None else recording:
        model = make(how in ("checkpointed", "both"), args.seq_len)
        model = {"lora": adapt, "sharded": shard}.get(how, nn.Module.cuda)(model).cuda()
        optimizer = {
            "fused": partial(torch.optim.AdamW, fused=True),
            "loop": partial(torch.optim.AdamW, foreach=False),
            "momentum": partial(torch.optim.SGD, lr=1e-3, momentum=0.9),
        }.get(how, torch.optim.AdamW)(each for each in model.parameters() if each.requires_grad)
        for _ in range(4):
            for _ in range(parts):
                given = batch(args.batch_size // parts, args.seq_len)
                with torch.autocast("cuda", dtype=torch.bfloat16, enabled=how in ("amp", "both")):
                    loss = loss_of(model(*given), given, args.model) / parts
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    if args.truth is not None:
        peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        args.truth.write_text(json.dumps(peaks))
        time.sleep(0.3)  # torch aborts at exit while autograd's thread still lets go of its last backward


if __name__ == "__main__":
    main()
