"""Programs whose memory is predicted and measured: small ones of every common kind.

A program is a class with a model, a loss and perhaps optimizers; ``train`` runs it with mixed precision, with
checkpoints, with both, or with accumulated gradients. They say ``cuda`` and know nothing of prediction.
"""

import copy
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

VARIANTS = ("fp32", "amp", "checkpoint", "amp+checkpoint", "accumulate")
PROGRAMS: dict[str, type["Program"]] = {}


class Program:
    """One training; ``blocks`` are what checkpoints go around."""

    steps = 3

    def __init__(self, *, checkpoints: bool) -> None:
        self.checkpoints = checkpoints
        self.model = self.build().cuda()
        self.optimizers = self.optimize()

    def __init_subclass__(cls) -> None:
        PROGRAMS[cls.__name__.lower()] = cls

    def build(self) -> nn.Module:
        raise NotImplementedError

    def optimize(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.AdamW(self.model.parameters(), lr=1e-3)]

    def loss(self) -> torch.Tensor:
        raise NotImplementedError

    def run(self, block: Callable[..., Any], *args: Any) -> Any:
        return checkpoint(block, *args, use_reentrant=False) if self.checkpoints else block(*args)

    def after(self) -> None:
        """Between backward and the optimizer."""


def train(name: str, variant: str) -> None:
    program = PROGRAMS[name](checkpoints="checkpoint" in variant)
    is_half = "amp" in variant
    times = 3 if variant == "accumulate" else 1
    scaler = torch.amp.GradScaler("cuda", enabled=is_half and name.startswith(("g", "m")))
    dtype = torch.float16 if scaler.is_enabled() else torch.bfloat16
    for _ in range(program.steps):
        for _ in range(times):
            with torch.autocast("cuda", dtype=dtype, enabled=is_half):
                loss = program.loss() / times
            scaler.scale(loss).backward()
        for optimizer in program.optimizers:
            scaler.unscale_(optimizer)
        program.after()
        for optimizer in program.optimizers:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()


def tokens(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, device="cuda")


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


def mlp(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])


# ------------------------------------------------------------------------------------ language models


class PlainBlock(nn.Module):
    def __init__(self, d: int, h: int, p: float = 0.1) -> None:
        super().__init__()
        self.h, self.p = h, p
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.f = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d), nn.Dropout(p))

    def attend(self, q: Any, k: Any, v: Any) -> Any:
        s = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        t = s.size(-1)
        s = s.masked_fill(torch.triu(torch.ones(t, t, device=s.device, dtype=torch.bool), 1), -math.inf)
        return F.dropout(s.softmax(-1), self.p, self.training) @ v

    def forward(self, x: Any) -> Any:
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.h, -1).transpose(1, 2) for y in self.qkv(self.n1(x)).split(c, 2))
        x = x + F.dropout(
            self.o(self.attend(q, k, v).transpose(1, 2).reshape(b, t, c)), self.p, self.training
        )
        return x + self.f(self.n2(x))


class CausalBlock(PlainBlock):
    def attend(self, q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=self.p if self.training else 0
        )


class Net(nn.Module):
    """Embedding, blocks, norm and head, held together by the program."""

    def __init__(self, blocks: list[nn.Module], d: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.e, self.p = nn.Embedding(vocabulary, d), nn.Embedding(length, d)
        self.blocks = nn.ModuleList(blocks)
        self.n, self.head = nn.LayerNorm(d), nn.Linear(d, vocabulary, bias=False)


class LanguageModel(Program):
    d, h, layers, vocabulary, length, batch = 384, 6, 6, 12000, 256, 8
    block: type[nn.Module] = PlainBlock
    is_tied = False

    def build(self) -> nn.Module:
        blocks = [self.block(self.d, self.h) for _ in range(self.layers)]
        net = Net(blocks, self.d, self.vocabulary, self.length)
        if self.is_tied:
            net.head.weight = net.e.weight
        return net

    def features(self, ids: torch.Tensor) -> torch.Tensor:
        m: Any = self.model
        x = m.e(ids) + m.p(torch.arange(ids.size(1), device=ids.device))
        for block in m.blocks:
            x = self.run(block, x)
        return m.head(m.n(x))

    def loss(self) -> torch.Tensor:
        out = self.features(tokens(self.vocabulary, self.batch, self.length))
        return F.cross_entropy(out.flatten(0, 1), tokens(self.vocabulary, self.batch * self.length))


del PROGRAMS["languagemodel"]


class Gpt(LanguageModel):
    pass


class GptFlash(LanguageModel):
    block = CausalBlock
    is_tied = True
    length = 512

    def after(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)


class GptSgd(LanguageModel):
    block = CausalBlock
    d, h, length, batch = 256, 4, 333, 5

    def optimize(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)]


class GptFused(LanguageModel):
    block = CausalBlock
    d, h, layers, vocabulary = 512, 8, 4, 32000

    def optimize(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.AdamW(self.model.parameters(), fused=True)]


class GptLoop(LanguageModel):
    d, h, layers = 320, 5, 3

    def optimize(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adam(self.model.parameters(), foreach=False)]


class Factored(LanguageModel):
    block = CausalBlock

    def optimize(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adafactor(self.model.parameters())]


class Evaluated(LanguageModel):
    """Trains, and evaluates between."""

    block = CausalBlock

    def loss(self) -> torch.Tensor:
        self.model.eval()
        with torch.no_grad():
            self.features(tokens(self.vocabulary, self.batch, self.length)).argmax(-1)
        self.model.train()
        return super().loss()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class LlamaBlock(nn.Module):
    def __init__(self, d: int, h: int, groups: int) -> None:
        super().__init__()
        self.h, self.g, self.w = h, groups, d // h
        self.n1, self.n2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.q, self.k, self.v = (nn.Linear(d, n * self.w, bias=False) for n in (h, groups, groups))
        self.o = nn.Linear(d, d, bias=False)
        self.a, self.b, self.c = (nn.Linear(*s, bias=False) for s in ((d, 3 * d), (d, 3 * d), (3 * d, d)))

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        b, t, _ = x.shape
        y = self.n1(x)
        q = rotate(self.q(y).view(b, t, self.h, self.w).transpose(1, 2), cos, sin)
        k = rotate(self.k(y).view(b, t, self.g, self.w).transpose(1, 2), cos, sin)
        v = self.v(y).view(b, t, self.g, self.w).transpose(1, 2)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, -1))
        y = self.n2(x)
        return x + self.c(F.silu(self.a(y)) * self.b(y))


class Llama(Program):
    d, h, g, layers, length, batch, dtype = 512, 8, 2, 6, 512, 4, torch.float32

    def build(self) -> nn.Module:
        net = Net([LlamaBlock(self.d, self.h, self.g) for _ in range(self.layers)], self.d, 16000, 1)
        net.n = nn.RMSNorm(self.d)
        return net.to(self.dtype)

    def loss(self) -> torch.Tensor:
        m: Any = self.model
        x = m.e(tokens(16000, self.batch, self.length))
        w = self.d // self.h
        angle = torch.outer(
            torch.arange(self.length, device="cuda").float(),
            1e4 ** (-torch.arange(0, w, 2, device="cuda").float() / w),
        )
        cos, sin = (torch.cat([f(angle)] * 2, -1).to(x.dtype) for f in (torch.cos, torch.sin))
        for block in m.blocks:
            x = self.run(block, x, cos, sin)
        out = m.head(m.n(x)).float()
        return F.cross_entropy(out.view(-1, 16000), tokens(16000, self.batch * self.length))


class LlamaHalf(Llama):
    dtype, h, g = torch.bfloat16, 4, 4


class Bert(Program):
    def build(self) -> nn.Module:
        layer = nn.TransformerEncoderLayer(384, 6, 1536, 0.1, "gelu", batch_first=True)
        net = Net([copy.deepcopy(layer) for _ in range(5)], 384, 10000, 256)
        net.head = nn.Sequential(nn.Linear(384, 384), nn.GELU(), nn.LayerNorm(384), nn.Linear(384, 10000))
        return net

    def loss(self) -> torch.Tensor:
        m: Any = self.model
        ids = tokens(10000, 12, 192)
        x = m.e(ids) + m.p(torch.arange(192, device="cuda"))
        padding = torch.zeros(12, 192, dtype=torch.bool, device="cuda")
        for block in m.blocks:
            x = self.run(lambda y, b=block: b(y, src_key_padding_mask=padding), x)
        labels = ids.masked_fill(torch.rand(12, 192, device="cuda") > 0.15, -100)
        return F.cross_entropy(m.head(m.n(x)).flatten(0, 1), labels.flatten(), ignore_index=-100)


class RelativeBlock(nn.Module):
    def __init__(self, d: int, h: int, crosses: bool) -> None:
        super().__init__()
        self.h = h
        self.own = nn.ModuleList([nn.Linear(d, d, bias=False) for _ in range(4)])
        self.other = nn.ModuleList([nn.Linear(d, d, bias=False) for _ in range(4)]) if crosses else None
        self.n = nn.ModuleList([nn.RMSNorm(d) for _ in range(3)])
        self.f = nn.Sequential(nn.Linear(d, 4 * d), nn.ReLU(), nn.Dropout(0.1), nn.Linear(4 * d, d))

    def attend(self, w: Any, x: Any, y: Any, bias: Any) -> Any:
        b, t, d = x.shape
        q, k, v = (
            f(z).view(b, -1, self.h, d // self.h).transpose(1, 2) for f, z in zip(w, (x, y, y), strict=False)
        )
        s = torch.einsum("bhqd,bhkd->bhqk", q, k)
        if bias is not None:
            s = s + bias
        return w[3](torch.einsum("bhqk,bhkd->bhqd", s.softmax(-1), v).transpose(1, 2).reshape(b, t, d))

    def forward(self, x: Any, bias: Any, memory: Any = None) -> Any:
        y = self.n[0](x)
        x = x + self.attend(self.own, y, y, bias)
        if self.other is not None:
            x = x + self.attend(self.other, self.n[1](x), memory, None)
        return x + self.f(self.n[2](x))


class T5(Program):
    def build(self) -> nn.Module:
        net = nn.ModuleDict({"e": nn.Embedding(8000, 256), "bias": nn.Embedding(32, 8), "n": nn.RMSNorm(256)})
        net["encoder"] = nn.ModuleList([RelativeBlock(256, 8, False) for _ in range(3)])
        net["decoder"] = nn.ModuleList([RelativeBlock(256, 8, True) for _ in range(3)])
        net["head"] = nn.Linear(256, 8000, bias=False)
        return net

    def bias(self, t: int) -> torch.Tensor:
        m: Any = self.model
        i = torch.arange(t, device="cuda")
        return m["bias"]((i[None] - i[:, None]).abs().clamp(max=31)).permute(2, 0, 1).unsqueeze(0)

    def loss(self) -> torch.Tensor:
        m: Any = self.model
        x, y = m["e"](tokens(8000, 8, 200)), m["e"](tokens(8000, 8, 96))
        bias = self.bias(200)
        for block in m["encoder"]:
            x = self.run(block, x, bias)
        causal = self.bias(96) + torch.full((96, 96), -1e9, device="cuda").triu(1)
        for block in m["decoder"]:
            y = self.run(block, y, causal, x)
        return F.cross_entropy(m["head"](m["n"](y)).transpose(1, 2), tokens(8000, 8, 96), label_smoothing=0.1)


class ScanBlock(nn.Module):
    """A selective scan, step by step."""

    def __init__(self, d: int, n: int) -> None:
        super().__init__()
        self.norm, self.into, self.out = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(2 * d, d)
        self.parts = nn.Linear(2 * d, 2 * n + 1)
        self.a = nn.Parameter(torch.rand(2 * d, n))
        self.taps = nn.Parameter(torch.rand(4, 2 * d))
        self.n = n

    def forward(self, x: Any) -> Any:
        u, gate = self.into(self.norm(x)).chunk(2, -1)
        u = F.silu(sum(F.pad(u, (0, 0, i, 0))[:, : u.size(1)] * self.taps[i] for i in range(4)))
        b, c, dt = self.parts(u).split([self.n, self.n, 1], -1)
        dt = F.softplus(dt)
        h = torch.zeros(x.size(0), u.size(-1), self.n, device=x.device, dtype=x.dtype)
        outs = []
        for t in range(x.size(1)):
            h = (
                h * torch.exp(-dt[:, t, :, None] * self.a)
                + (dt[:, t] * u[:, t]).unsqueeze(-1) * b[:, t, None]
            )
            outs.append((h * c[:, t, None]).sum(-1))
        return x + self.out(torch.stack(outs, 1).to(gate.dtype) * F.silu(gate))


class Mamba(LanguageModel):
    layers, length, d, batch, vocabulary = 2, 48, 192, 8, 4000

    def build(self) -> nn.Module:
        return Net([ScanBlock(self.d, 8) for _ in range(self.layers)], self.d, self.vocabulary, self.length)


class Experts(nn.Module):
    """Two of eight experts for each token, all of them run on all tokens with weights."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.gate, self.n = nn.Linear(d, 8, bias=False), nn.LayerNorm(d)
        self.experts = nn.ModuleList([mlp(d, 2 * d, d, act=nn.GELU) for _ in range(8)])

    def forward(self, x: Any) -> Any:
        y = self.n(x)
        weight, index = self.gate(y).softmax(-1).topk(2, -1)
        chosen = torch.zeros(*y.shape[:-1], 8, device=y.device, dtype=weight.dtype).scatter(-1, index, weight)
        return x + sum(chosen[..., i : i + 1] * expert(y) for i, expert in enumerate(self.experts))


class Moe(LanguageModel):
    d, layers = 256, 4

    def build(self) -> nn.Module:
        blocks = [nn.Sequential(CausalBlock(self.d, 4), Experts(self.d)) for _ in range(self.layers)]
        return Net(blocks, self.d, self.vocabulary, self.length)


class Alibi(LanguageModel):
    """Attention with a term for the distance, so with a mask."""

    class Block(CausalBlock):
        def attend(self, q: Any, k: Any, v: Any) -> Any:
            t = q.size(2)
            i = torch.arange(t, device=q.device)
            slope = torch.arange(1, self.h + 1, device=q.device).view(-1, 1, 1)
            bias = (-(i[:, None] - i[None]).abs() * slope).to(q.dtype).expand(q.size(0), -1, -1, -1)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    block = Block
    d, h, length = 256, 4, 200


class Recurrence(LanguageModel):
    """Remembers the keys of the segment before."""

    d, h, layers, length = 256, 4, 3, 128

    def loss(self) -> torch.Tensor:
        m: Any = self.model
        ids = tokens(self.vocabulary, self.batch, self.length)
        x = m.e(ids) + m.p(torch.arange(self.length, device="cuda"))
        before = getattr(self, "memory", [torch.zeros_like(x)] * self.layers)
        kept = []
        for block, old in zip(m.blocks, before, strict=True):
            kept.append(x.detach())
            x = self.run(lambda y, o, b=block: b(torch.cat([o, y], 1))[:, o.size(1) :], x, old)
        self.memory = kept
        return F.cross_entropy(m.head(m.n(x)).flatten(0, 1), ids.flatten())


class Lora(LanguageModel):
    """A frozen model with adapters, and reentrant checkpoints."""

    block = CausalBlock

    class Adapted(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base = base
            self.down = nn.Linear(base.in_features, 8, bias=False)
            self.up = nn.Linear(8, base.out_features, bias=False)

        def forward(self, x: Any) -> Any:
            return self.base(x) + self.up(self.down(x)) * 2

    def build(self) -> nn.Module:
        net = super().build().requires_grad_(False)
        for block in net.blocks:
            block.qkv, block.o = self.Adapted(block.qkv), self.Adapted(block.o)
        return net

    def optimize(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.AdamW([p for p in self.model.parameters() if p.requires_grad])]

    def run(self, block: Callable[..., Any], *args: Any) -> Any:
        if not self.checkpoints:
            return block(*args)
        return checkpoint(block, *(a.requires_grad_() if a.is_leaf else a for a in args), use_reentrant=True)


class Distill(LanguageModel):
    block = CausalBlock
    d, h, layers = 256, 4, 3

    def build(self) -> nn.Module:
        self.teacher = LanguageModel.build(GptSgd.__new__(GptSgd)).cuda().eval()
        self.teacher.p = nn.Embedding(self.length, 256).cuda()
        return super().build()

    def loss(self) -> torch.Tensor:
        ids = tokens(self.vocabulary, self.batch, self.length)
        student, model = self.features(ids), self.model
        with torch.no_grad():
            self.model = self.teacher
            teacher = self.features(ids)
            self.model = model
        return F.kl_div(student.log_softmax(-1), teacher.softmax(-1), reduction="batchmean")


# ------------------------------------------------------------------------------------------- pictures


class Vit(Program):
    size, patch, d = 128, 16, 384

    def build(self) -> nn.Module:
        n = (self.size // self.patch) ** 2
        net = Net([PlainBlock(self.d, 6) for _ in range(4)], self.d, 100, n + 1)
        net.e = nn.Linear(3 * self.patch**2, self.d)
        net.token = nn.Parameter(torch.zeros(1, 1, self.d))
        return net

    def loss(self) -> torch.Tensor:
        m: Any = self.model
        p = self.patch
        x = noise(32, 3, self.size, self.size).unfold(2, p, p).unfold(3, p, p)
        x = m.e(x.permute(0, 2, 3, 1, 4, 5).reshape(32, -1, 3 * p * p))
        x = torch.cat([m.token.expand(32, -1, -1), x], 1) + m.p.weight
        for block in m.blocks:
            x = self.run(block, x)
        return F.cross_entropy(m.head(m.n(x[:, 0])), tokens(100, 32), label_smoothing=0.1)


class MixerBlock(nn.Module):
    def __init__(self, t: int, d: int) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.across, self.within = mlp(t, 2 * t, t, act=nn.GELU), mlp(d, 4 * d, d, act=nn.GELU)

    def forward(self, x: Any) -> Any:
        x = x + self.across(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.n2(x))


class Mixer(Program):
    def build(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(768, 256), *(MixerBlock(196, 256) for _ in range(5)), nn.Linear(256, 100)
        )

    def loss(self) -> torch.Tensor:
        x = noise(24, 196, 768)
        for block in self.model:
            x = self.run(block, x)
        return F.cross_entropy(x.mean(1), tokens(100, 24))


class ResidualConv(nn.Module):
    def __init__(self, a: int, b: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(a, b, 3, stride, 1),
            nn.BatchNorm2d(b),
            nn.ReLU(),
            nn.Conv2d(b, b, 3, 1, 1),
            nn.BatchNorm2d(b),
        )
        self.short = nn.Conv2d(a, b, 1, stride)

    def forward(self, x: Any) -> Any:
        return F.relu(self.body(x) + self.short(x))


class Resnet(Program):
    def build(self) -> nn.Module:
        widths = (3, 32, 64, 128)
        blocks = [ResidualConv(a, b, 2) for a, b in pairwise(widths)]
        return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))

    def loss(self) -> torch.Tensor:
        x = noise(16, 3, 64, 64)
        for block in self.model:
            x = self.run(block, x)
        return F.cross_entropy(x, tokens(10, 16))


class Unet(Program):
    def build(self) -> nn.Module:
        return nn.ModuleList(
            [ResidualConv(3, 32), ResidualConv(32, 64), ResidualConv(96, 32), nn.Conv2d(32, 3, 1)]
        )

    def loss(self) -> torch.Tensor:
        m: Any = self.model
        x = noise(4, 3, 64, 64)
        a = self.run(m[0], x)
        b = F.interpolate(self.run(m[1], F.max_pool2d(a, 2)), scale_factor=2)
        return F.mse_loss(m[3](self.run(m[2], torch.cat([a, b], 1))), x)


class Nerf(Program):
    def build(self) -> nn.Module:
        return mlp(63, 256, 256, 256, 256, 4)

    def loss(self) -> torch.Tensor:
        x = noise(65536, 3)
        scales = 2.0 ** torch.arange(10, device="cuda")
        angles = (x.unsqueeze(-1) * scales).flatten(1)
        out = self.run(self.model, torch.cat([x, angles.sin(), angles.cos()], -1)).view(1024, 64, 4)
        density = 1 - torch.exp(-F.relu(out[..., 3]))
        through = torch.cumprod(1 - density + 1e-6, -1)
        return F.mse_loss(((density * through).unsqueeze(-1) * out[..., :3].sigmoid()).sum(1), noise(1024, 3))


class Diffusion(Program):
    """A denoiser of vectors, its moving average beside it."""

    def build(self) -> nn.Module:
        net = nn.ModuleDict({"t": mlp(128, 512, 512, act=nn.SiLU), "into": nn.Linear(1024, 512)})
        net["blocks"] = nn.ModuleList([mlp(512, 2048, 512, act=nn.SiLU) for _ in range(4)])
        net["out"] = nn.Linear(512, 1024)
        return net

    def optimize(self) -> list[torch.optim.Optimizer]:
        self.average = copy.deepcopy(self.model).requires_grad_(False)
        return super().optimize()

    def loss(self) -> torch.Tensor:
        m: Any = self.model
        x, e = noise(2048, 1024), noise(2048, 1024)
        t = torch.rand(2048, 1, device="cuda")
        f = torch.exp(-torch.arange(64, device="cuda") / 8) * t
        y = m["into"](x * (1 - t) + e * t) + m["t"](torch.cat([f.sin(), f.cos()], -1))
        for block in m["blocks"]:
            y = y + self.run(block, F.layer_norm(y, (512,)))
        return F.mse_loss(m["out"](y), e)

    def after(self) -> None:
        with torch.no_grad():
            for a, p in zip(self.average.parameters(), self.model.parameters(), strict=True):
                a.lerp_(p, 0.01)


class Vae(Program):
    def build(self) -> nn.Module:
        return nn.ModuleList([mlp(4096, 1024, 128), mlp(64, 1024, 4096)])

    def loss(self) -> torch.Tensor:
        m: Any = self.model
        x = torch.rand(512, 4096, device="cuda")
        mean, log_var = self.run(m[0], x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        kl = -0.5 * (1 + log_var - mean.pow(2) - log_var.exp()).sum(1).mean()
        return F.binary_cross_entropy_with_logits(self.run(m[1], z), x) + 1e-3 * kl


class Gan(Program):
    def build(self) -> nn.Module:
        return nn.ModuleList([mlp(64, 512, 1024, 3072), mlp(3072, 1024, 512, 1, act=nn.LeakyReLU)])

    def optimize(self) -> list[torch.optim.Optimizer]:
        m: Any = self.model
        return [torch.optim.Adam(one.parameters(), lr=2e-4, betas=(0.5, 0.999)) for one in m]

    def loss(self) -> torch.Tensor:
        m: Any = self.model
        fake = self.run(m[0], noise(256, 64)).tanh()
        real = F.softplus(-self.run(m[1], noise(256, 3072))).mean()
        return real + F.softplus(self.run(m[1], fake.detach())).mean() + F.softplus(-m[1](fake)).mean()


# ----------------------------------------------------------------------------- tables, graphs, the rest


class Dlrm(Program):
    def build(self) -> nn.Module:
        net = nn.ModuleDict({"bottom": mlp(13, 512, 256, 64), "top": mlp(64 + 45, 512, 256, 1)})
        net["tables"] = nn.ModuleList([nn.EmbeddingBag(20000, 64, mode="sum") for _ in range(9)])
        return net

    def optimize(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adagrad(self.model.parameters(), lr=0.01)]

    def loss(self) -> torch.Tensor:
        m: Any = self.model
        dense = self.run(m["bottom"], noise(2048, 13))
        rows = [dense, *(table(tokens(20000, 2048, 4)) for table in m["tables"])]
        x = torch.stack([one.to(dense.dtype) for one in rows], 1)
        i, j = torch.triu_indices(10, 10, 1, device="cuda")
        pairs = torch.bmm(x, x.transpose(1, 2)).flatten(1).index_select(1, i * 10 + j)
        out = m["top"](torch.cat([dense, pairs], 1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(out.float(), torch.rand(2048, device="cuda").round())


class Gnn(Program):
    """Messages along 60,000 edges between 8,000 nodes."""

    def build(self) -> nn.Module:
        net = nn.ModuleDict({"e": nn.Embedding(50, 128), "out": nn.Linear(128, 10)})
        net["message"] = nn.ModuleList([mlp(256, 128, 128) for _ in range(3)])
        net["renew"] = nn.ModuleList([nn.Linear(256, 128) for _ in range(3)])
        return net

    def layer(self, x: Any, source: Any, target: Any, message: Any, update: Any) -> Any:
        m = message(torch.cat([x[source], x[target]], -1))
        total = torch.zeros(x.size(0), 128, device=x.device, dtype=m.dtype).index_add(0, target, m)
        return F.relu(update(torch.cat([x.to(m.dtype), total], -1)))

    def loss(self) -> torch.Tensor:
        m: Any = self.model
        x, source, target = m["e"](tokens(50, 8000)), tokens(8000, 60000), tokens(8000, 60000)
        for message, update in zip(m["message"], m["renew"], strict=True):
            x = self.run(self.layer, x, source, target, message, update)
        return F.cross_entropy(m["out"](x), tokens(10, 8000))


class Tabular(Program):
    """Numbers and categories as tokens of a transformer."""

    def build(self) -> nn.Module:
        net = Net([PlainBlock(96, 4, 0.0) for _ in range(3)], 96, 500, 40)
        net.scale = nn.Parameter(torch.randn(20, 96))
        net.head = nn.Linear(96, 1)
        return net

    def loss(self) -> torch.Tensor:
        m: Any = self.model
        x = torch.cat([m.e(tokens(500, 512, 20)), noise(512, 20, 1) * m.scale], 1) + m.p.weight
        for block in m.blocks:
            x = self.run(block, x)
        return F.smooth_l1_loss(m.head(m.n(x).mean(1)).squeeze(-1), noise(512))


class Lstm(Program):
    kind: type[nn.Module] = nn.LSTM

    def build(self) -> nn.Module:
        return nn.ModuleList(
            [nn.Embedding(5000, 128), self.kind(128, 256, 2, batch_first=True), nn.Linear(256, 5000)]
        )

    def loss(self) -> torch.Tensor:
        m: Any = self.model
        x = self.run(lambda y: m[1](y)[0], m[0](tokens(5000, 16, 32)))
        return F.cross_entropy(m[2](x).flatten(0, 1), tokens(5000, 512))


class Gru(Lstm):
    kind = nn.GRU


class Contrastive(Program):
    def build(self) -> nn.Module:
        return nn.ModuleList([mlp(512, 1024, 256, act=nn.GELU), mlp(768, 1024, 256, act=nn.GELU)])

    def loss(self) -> torch.Tensor:
        m: Any = self.model
        a, b = (F.normalize(self.run(f, noise(1500, n)), dim=-1) for f, n in zip(m, (512, 768), strict=True))
        logits, labels = a @ b.t() / 0.07, torch.arange(1500, device="cuda")
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


class Triplet(Program):
    def build(self) -> nn.Module:
        return mlp(300, 600, 600, 64, act=nn.ELU)

    def loss(self) -> torch.Tensor:
        a, b, c = (self.run(self.model, noise(4000, 300)) for _ in range(3))
        return F.triplet_margin_loss(a, b, c)


class Policy(Program):
    def build(self) -> nn.Module:
        return nn.ModuleList([mlp(128, 512, 512, 18, act=nn.Tanh), mlp(128, 512, 512, 1, act=nn.Tanh)])

    def loss(self) -> torch.Tensor:
        m: Any = self.model
        x, action, gain = noise(8192, 128), tokens(18, 8192, 1), noise(8192)
        log = self.run(m[0], x).log_softmax(-1)
        ratio = (log.gather(1, action).squeeze(1) - log.detach().gather(1, action).squeeze(1)).exp()
        clipped = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        entropy = -(log.exp() * log).sum(-1).mean()
        return F.mse_loss(self.run(m[1], x).squeeze(1), gain) - clipped - 0.01 * entropy

    def after(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)


class Physics(Program):
    """A residual with a second derivative."""

    def build(self) -> nn.Module:
        return mlp(2, 256, 256, 256, 1, act=nn.Tanh)

    def loss(self) -> torch.Tensor:
        x = noise(20000, 2).requires_grad_()
        u = self.model(x)
        (g,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (h,) = torch.autograd.grad(g[:, 0].sum(), x, create_graph=True)
        return (g[:, 1] - h[:, 0]).square().mean() + u.square().mean()


class Perceiver(Program):
    def build(self) -> nn.Module:
        net = nn.ModuleDict({"into": nn.Linear(64, 192), "out": nn.Linear(192, 20)})
        net["cross"] = nn.ModuleList([nn.MultiheadAttention(192, 4, batch_first=True) for _ in range(2)])
        net["own"] = nn.ModuleList([CausalBlock(192, 4, 0.0) for _ in range(2)])
        net.latent = nn.Parameter(torch.randn(64, 192))
        return net

    def loss(self) -> torch.Tensor:
        m: Any = self.model
        x = m["into"](noise(8, 2000, 64))
        z = m.latent.expand(8, -1, -1)
        for cross, own in zip(m["cross"], m["own"], strict=True):
            z = z + self.run(lambda a, b, f=cross: f(a, b, b, need_weights=False)[0], z, x)
            z = self.run(own, z)
        return F.cross_entropy(m["out"](z.mean(1)), tokens(20, 8))


class Translation(Program):
    def build(self) -> nn.Module:
        net = nn.ModuleDict({"e": nn.Embedding(6000, 256), "head": nn.Linear(256, 6000)})
        net["body"] = nn.Transformer(256, 8, 2, 2, 1024, batch_first=True, norm_first=True)
        return net

    def loss(self) -> torch.Tensor:
        m: Any = self.model
        source, target = m["e"](tokens(6000, 8, 120)), m["e"](tokens(6000, 8, 100))
        mask = nn.Transformer.generate_square_subsequent_mask(100, device="cuda")
        out = self.run(lambda a, b: m["body"](a, b, tgt_mask=mask, tgt_is_causal=True), source, target)
        return F.cross_entropy(m["head"](out).flatten(0, 1), tokens(6000, 800))


class Wide(Program):
    """One large layer and plain SGD."""

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4096, 8192), nn.ReLU(), nn.Linear(8192, 1024))

    def optimize(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(self.model.parameters(), lr=0.1)]

    def loss(self) -> torch.Tensor:
        return self.run(self.model, noise(777, 4096)).float().norm(dim=-1).mean()


class Tasks(Program):
    """One trunk, three heads and losses."""

    def build(self) -> nn.Module:
        return nn.ModuleList([mlp(256, 1024, 512), nn.Linear(512, 10), nn.Linear(512, 1), nn.Linear(512, 64)])

    def loss(self) -> torch.Tensor:
        m: Any = self.model
        x = F.dropout(self.run(m[0], noise(6000, 256)), 0.2)
        a = F.nll_loss(m[1](x).log_softmax(-1), tokens(10, 6000))
        b = F.huber_loss(m[2](x).squeeze(1), noise(6000).to(x.dtype))
        return a + b + (1 - F.cosine_similarity(m[3](x), noise(6000, 64), dim=-1)).mean()


class Groups(Program):
    """Group normalization, and Adam in one kernel."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n, self.f = nn.GroupNorm(8, 256), mlp(256, 512, 256, act=nn.SiLU)

        def forward(self, x: Any) -> Any:
            return x + self.f(self.n(x.transpose(1, 2)).transpose(1, 2))

    def build(self) -> nn.Module:
        return nn.Sequential(*(self.Block() for _ in range(4)), nn.Linear(256, 32))

    def optimize(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adam(self.model.parameters(), fused=True)]

    def loss(self) -> torch.Tensor:
        x = noise(16, 512, 256)
        for block in self.model:
            x = self.run(block, x)
        return F.l1_loss(x, noise(16, 512, 32).to(x.dtype))


class Perceptron(Program):
    """One wide block, and Adam in one kernel."""

    def build(self) -> nn.Module:
        return nn.Sequential(mlp(1024, 4096), nn.LayerNorm(4096), nn.Dropout(0.1), nn.Linear(4096, 1024))

    def optimize(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adam(self.model.parameters(), fused=True)]

    def loss(self) -> torch.Tensor:
        return F.mse_loss(self.run(self.model, noise(2048, 1024)), noise(2048, 1024))


class Pictures(Program):
    """Convolutions, group normalization and momentum."""

    def build(self) -> nn.Module:
        first = (nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        second = (nn.Conv2d(32, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.SiLU())
        return nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 10))

    def optimize(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)]

    def loss(self) -> torch.Tensor:
        return F.cross_entropy(self.run(self.model, noise(32, 3, 64, 64)), tokens(10, 32))


class Waves(Program):
    """Convolutions of lines, by depth, with gaps and back."""

    def build(self) -> nn.Module:
        first = (nn.Conv1d(4, 32, 9, stride=4), nn.GELU(), nn.Conv1d(32, 64, 5, dilation=2), nn.GELU())
        return nn.ModuleList(
            [nn.Sequential(*first), nn.Conv2d(64, 64, (1, 3), groups=64), nn.ConvTranspose2d(64, 4, (1, 8))]
        )

    def loss(self) -> torch.Tensor:
        m: Any = self.model
        x = self.run(m[0], noise(8, 4, 4000)).unsqueeze(2)
        return m[2](m[1](x)).square().mean()
