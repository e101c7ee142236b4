"""105 trainings of random kind and options, written before any was predicted: ``_prediction_fresh.py N``.

Each prints the peaks of torch's own counters. What an H100 said of them, beside what the dry run had said, stands in
``h100_fresh.json``.
"""

import json, math, random, sys
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

N = int(sys.argv[1])
R = random.Random(N * 7919 + 20261126)
torch.manual_seed(N)
D = "cuda"
pick = R.choice


class Attn(nn.Module):
    def __init__(self, d, h, causal, kind):
        super().__init__()
        self.qkv, self.o, self.h, self.causal, self.kind = (
            nn.Linear(d, 3 * d),
            nn.Linear(d, d),
            h,
            causal,
            kind,
        )

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        if self.kind == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            s = q @ k.transpose(-2, -1) / math.sqrt(d // self.h)
            if self.causal:
                s = s.masked_fill(torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1), float("-inf"))
            y = s.softmax(-1) @ v
        return self.o(y.transpose(1, 2).reshape(b, t, d))


class Gated(nn.Module):
    def __init__(self, d, m):
        super().__init__()
        self.a, self.b, self.c = (
            nn.Linear(d, m, bias=False),
            nn.Linear(d, m, bias=False),
            nn.Linear(m, d, bias=False),
        )

    def forward(self, x):
        return self.c(F.silu(self.a(x)) * self.b(x))


class Block(nn.Module):
    def __init__(self, d, h, causal, kind, p):
        super().__init__()
        norm = pick([nn.LayerNorm, nn.RMSNorm])
        self.n1, self.n2, self.at = norm(d), norm(d), Attn(d, h, causal, kind)
        self.ff = (
            Gated(d, 3 * d)
            if R.random() < 0.4
            else nn.Sequential(
                nn.Linear(d, 4 * d), pick([nn.GELU, nn.ReLU, nn.SiLU, nn.Tanh])(), nn.Linear(4 * d, d)
            )
        )
        self.dp = nn.Dropout(p)

    def forward(self, x):
        x = x + self.dp(self.at(self.n1(x)))
        return x + self.dp(self.ff(self.n2(x)))


class Stack(nn.Module):
    def __init__(self, d, n, h, causal, kind, p, ck):
        super().__init__()
        self.bs, self.ck = nn.ModuleList(Block(d, h, causal, kind, p) for _ in range(n)), ck

    def forward(self, x):
        for b in self.bs:
            x = checkpoint(b, x, use_reentrant=False) if self.ck and self.training else b(x)
        return x


def stack(d, causal):
    return Stack(
        d,
        R.randint(2, 6),
        pick([4, 8]),
        causal,
        pick(["sdpa", "sdpa", "plain"]),
        pick([0.0, 0.1]),
        R.random() < 0.25,
    )


def gpt():
    d, v, t, b = (
        pick([256, 384, 512, 768]),
        pick([5003, 16000, 32000]),
        pick([128, 256, 500]),
        R.randint(2, 12),
    )
    emb, pos, body, ln = nn.Embedding(v, d), nn.Embedding(t, d), stack(d, True), nn.LayerNorm(d)
    head = nn.Linear(d, v, bias=False)
    if R.random() < 0.5:
        head.weight = emb.weight
    m = nn.ModuleList([emb, pos, body, ln, head])

    def loss():
        x = torch.randint(0, v, (b, t + 1), device=D)
        h = ln(body(emb(x[:, :-1]) + pos(torch.arange(t, device=D))))
        return F.cross_entropy(head(h).view(-1, v), x[:, 1:].reshape(-1))

    return m, loss


def chunked():
    d, v, t, b, n = 512, 32000, 256, R.randint(2, 8), pick([2, 4, 8])
    emb, body, head = nn.Embedding(v, d), stack(d, True), nn.Linear(d, v)

    def loss():
        x = torch.randint(0, v, (b, t), device=D)
        h = body(emb(x)).view(-1, d)
        return sum(F.cross_entropy(head(c).float(), y) for c, y in zip(h.chunk(n), x.view(-1).chunk(n))) / n

    return nn.ModuleList([emb, body, head]), loss


def seq2seq():
    d, t, b = pick([256, 512]), pick([64, 100, 200]), R.randint(4, 20)
    m = nn.Transformer(d, 8, R.randint(1, 4), R.randint(1, 4), 4 * d, pick([0.0, 0.1]), batch_first=True)

    def loss():
        s, g = torch.randn(b, t, d, device=D), torch.randn(b, t // 2, d, device=D)
        mask = nn.Transformer.generate_square_subsequent_mask(t // 2, device=D)
        return m(s, g, tgt_mask=mask).square().mean()

    return m, loss


def encoder():
    d, t, b = pick([256, 512]), pick([128, 300]), R.randint(4, 20)
    m = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(d, 8, 4 * d, 0.1, batch_first=True, norm_first=R.random() < 0.5),
        R.randint(2, 5),
    )
    n = torch.randint(t // 2, t, (b, 1), device=D)

    def loss():
        pad = torch.arange(t, device=D)[None] >= n
        if R.random() < 0.3:
            m.eval()
            with torch.no_grad():
                m(torch.randn(b, t, d, device=D), src_key_padding_mask=pad)
            m.train()
        return m(torch.randn(b, t, d, device=D), src_key_padding_mask=pad).square().mean()

    return m, loss


def vit():
    d, s, p, b = pick([192, 384, 768]), pick([96, 160, 224]), 16, R.randint(4, 40)
    pe, body, head = nn.Linear(3 * p * p, d), stack(d, False), nn.Linear(d, 1000)
    cls = nn.Parameter(torch.zeros(1, 1, d))

    def loss():
        x = torch.randn(b, 3, s, s, device=D)
        x = F.unfold(x, p, stride=p).transpose(1, 2)
        x = torch.cat([m.cls.expand(b, 1, d), pe(x)], 1)
        return F.cross_entropy(
            head(body(x)[:, 0]), torch.randint(0, 1000, (b,), device=D), label_smoothing=pick([0.0, 0.1])
        )

    m = nn.ModuleList([pe, body, head])
    m.cls = cls
    return m, loss


def recurrent():
    d, t, b, v = pick([128, 256, 512]), pick([50, 120]), R.randint(8, 64), 8000
    kind = pick([nn.LSTM, nn.GRU, nn.RNN])
    emb, rnn = (
        nn.Embedding(v, d),
        kind(
            d,
            d,
            R.randint(1, 3),
            batch_first=R.random() < 0.5,
            dropout=pick([0.0, 0.2]),
            bidirectional=R.random() < 0.3,
        ),
    )
    out = nn.Linear(d * (2 if rnn.bidirectional else 1), v)

    def loss():
        x = torch.randint(0, v, (b, t) if rnn.batch_first else (t, b), device=D)
        return F.cross_entropy(out(rnn(emb(x))[0]).flatten(0, 1), x.flatten())

    return nn.ModuleList([emb, rnn, out]), loss


def graph():
    n, e, d = pick([5000, 20000, 60000]), pick([100000, 400000]), pick([64, 128])
    ls = nn.ModuleList(nn.Linear(2 * d, d) for _ in range(R.randint(2, 5)))
    x, i = torch.randn(n, d, device=D), torch.randint(0, n, (2, e), device=D)
    kind = pick(["index_add", "scatter", "gather"])

    def loss():
        h = x
        for l in ls:
            msg = h[i[0]] if kind != "gather" else h.gather(0, i[0][:, None].expand(-1, d))
            z = torch.zeros_like(h)
            a = (
                z.index_add(0, i[1], msg)
                if kind != "scatter"
                else z.scatter_add(0, i[1][:, None].expand(-1, d), msg)
            )
            h = F.elu(l(torch.cat([h, a], 1)))
        return F.log_softmax(h, 1).square().mean()

    return ls, loss


def dlrm():
    d, b = pick([16, 64]), pick([512, 4096])
    tables = nn.ModuleList(
        nn.EmbeddingBag(R.randint(1000, 300000), d, mode=pick(["sum", "mean"]))
        for _ in range(R.randint(3, 12))
    )
    bot, top = (
        nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, d)),
        nn.Sequential(nn.LazyLinear(512), nn.ReLU(), nn.Linear(512, 1)),
    )

    def loss():
        o = [bot(torch.randn(b, 13, device=D))] + [
            t(torch.randint(0, t.num_embeddings, (b, 5), device=D)) for t in tables
        ]
        z = torch.stack(o, 1)
        w = torch.bmm(z, z.transpose(1, 2))
        i, j = torch.tril_indices(len(o), len(o), -1, device=D)
        return F.binary_cross_entropy_with_logits(
            top(torch.cat([o[0], w[:, i, j]], 1)), torch.rand(b, 1, device=D)
        )

    m = nn.ModuleList([tables, bot, top])
    m.to(D)
    loss()
    return m, loss


def vae():
    d, b, z = pick([784, 3072]), pick([256, 2048]), pick([32, 200])
    e, f = (
        nn.Sequential(nn.Linear(d, 1024), nn.LeakyReLU(), nn.Linear(1024, 2 * z)),
        nn.Sequential(nn.Linear(z, 1024), nn.Softplus(), nn.Linear(1024, d)),
    )

    def loss():
        x = torch.rand(b, d, device=D)
        mu, lv = e(x).chunk(2, 1)
        q = torch.distributions.Normal(mu, lv.mul(0.5).exp())
        kl = torch.distributions.kl_divergence(
            q, torch.distributions.Normal(torch.zeros_like(mu), torch.ones_like(mu))
        )
        return F.binary_cross_entropy_with_logits(f(q.rsample()), x) + kl.mean()

    return nn.ModuleList([e, f]), loss


def gan():
    z, d, b = 128, pick([1024, 4096]), pick([128, 1024])
    g = nn.Sequential(nn.Linear(z, 1024), nn.BatchNorm1d(1024), nn.ReLU(), nn.Linear(1024, d), nn.Tanh())
    c = nn.Sequential(nn.utils.spectral_norm(nn.Linear(d, 1024)), nn.LeakyReLU(0.2), nn.Linear(1024, 1))
    o = torch.optim.Adam(c.to(D).parameters(), 1e-4, betas=(0.5, 0.9))

    def loss():
        real, fake = torch.randn(b, d, device=D), g(torch.randn(b, z, device=D))
        o.zero_grad()
        if R.random() < 0.5:
            a = torch.rand(b, 1, device=D)
            i = (a * real + (1 - a) * fake.detach()).requires_grad_()
            (gr,) = torch.autograd.grad(c(i).sum(), i, create_graph=True)
            (10 * (gr.norm(dim=1) - 1).square().mean()).backward()
        (c(fake.detach()).mean() - c(real).mean()).backward()
        o.step()
        return -c(fake).mean()

    return g, loss


def perceiver():
    d, n, l, b = 256, pick([1000, 4000]), pick([64, 256]), R.randint(2, 8)
    lat = nn.Parameter(torch.randn(l, d))
    x, body = nn.MultiheadAttention(d, 8, dropout=pick([0.0, 0.1]), batch_first=True), stack(d, False)

    def loss():
        k = torch.randn(b, n, d, device=D)
        return body(x(m.lat.expand(b, l, d), k, k, need_weights=R.random() < 0.5)[0]).square().mean()

    m = nn.ModuleList([x, body])
    m.lat = lat
    return m, loss


def linear_attention():
    d, t, b, h = pick([128, 256]), pick([256, 1024]), R.randint(1, 6), 4
    ls = nn.ModuleList(nn.Linear(d, 3 * d) for _ in range(R.randint(2, 4)))

    def loss():
        x = torch.randn(b, t, d, device=D)
        for l in ls:
            q, k, v = l(x).view(b, t, 3, h, d // h).unbind(2)
            q, k = F.elu(q) + 1, F.elu(k) + 1
            kv = torch.einsum("bthd,bthe->bhde", k, v)
            x = x + torch.einsum(
                "bthd,bhde,bth->bthe", q, kv, 1 / (torch.einsum("bthd,bhd->bth", q, k.sum(1)) + 1e-6)
            ).reshape(b, t, d)
            x = x + torch.cumsum(x, 1) / torch.arange(1, t + 1, device=D)[:, None]
        return x.square().mean()

    return ls, loss


def nerf():
    n, s = pick([1024, 4096]), pick([32, 64])
    m = nn.Sequential(
        nn.Linear(60, 256),
        nn.ReLU(),
        *[l for _ in range(R.randint(2, 6)) for l in (nn.Linear(256, 256), nn.ReLU())],
        nn.Linear(256, 4),
    )

    def loss():
        x = torch.rand(n, s, 3, device=D)
        f = 2.0 ** torch.arange(10, device=D) * math.pi
        y = x[..., None] * f
        o = m(torch.cat([y.sin(), y.cos()], -1).flatten(-2))
        a = 1 - torch.exp(-F.relu(o[..., 3]) / s)
        w = a * torch.cumprod(torch.cat([torch.ones(n, 1, device=D), 1 - a + 1e-10], 1), 1)[:, :-1]
        return F.mse_loss((w[..., None] * o[..., :3].sigmoid()).sum(1), torch.rand(n, 3, device=D))

    return m, loss


def clip():
    d, b, v, t = 384, R.randint(16, 128), 20000, 64
    emb, ta, ia, pe = nn.Embedding(v, d), stack(d, True), stack(d, False), nn.Linear(768, d)
    s = nn.Parameter(torch.tensor(2.6))

    def loss():
        a = F.normalize(ta(emb(torch.randint(0, v, (b, t), device=D))).mean(1), dim=-1)
        c = F.normalize(ia(pe(torch.randn(b, 49, 768, device=D))).amax(1), dim=-1)
        l = m.s.exp() * a @ c.t()
        y = torch.arange(b, device=D)
        return (F.cross_entropy(l, y) + F.cross_entropy(l.t(), y)) / 2

    m = nn.ModuleList([emb, ta, ia, pe])
    m.s = s
    return m, loss


def experts():
    d, e, k, t = pick([256, 512]), pick([4, 8]), pick([1, 2]), pick([1024, 4096])
    gate, ff = nn.Linear(d, e), nn.ModuleList(Gated(d, 2 * d) for _ in range(e))
    even = R.random() < 0.5

    def loss():
        x = torch.randn(t, d, device=D)
        p = gate(x).softmax(-1)
        y = torch.zeros_like(x)
        if even:
            w, i = p.topk(t // e * k // k, 0)
            for j, f in enumerate(ff):
                y = y.index_add(0, i[:, j], f(x[i[:, j]]) * w[:, j, None])
        else:
            w, i = p.topk(k, -1)
            for j, f in enumerate(ff):
                r, c = (i == j).nonzero(as_tuple=True)
                y = y.index_add(0, r, f(x[r]) * w[r, c, None])
        return (x + y).square().mean()

    return nn.ModuleList([gate, ff]), loss


def policy():
    s, a, n, t = 64, pick([6, 18]), pick([64, 512]), pick([16, 32])
    body, pi, val = (
        nn.Sequential(nn.Linear(s, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh()),
        nn.Linear(512, a),
        nn.Linear(512, 1),
    )

    def loss():
        obs, act, rew = [], [], []
        with torch.no_grad():
            o = torch.randn(n, s, device=D)
            for _ in range(t):
                q = torch.distributions.Categorical(logits=pi(body(o)))
                u = q.sample()
                obs.append(o), act.append(u), rew.append(torch.rand(n, device=D))
                o = o + 0.1 * torch.randn_like(o)
            g, gs = torch.zeros(n, device=D), []
            for r in reversed(rew):
                g = r + 0.99 * g
                gs.insert(0, g)
        o, u, g = torch.cat(obs), torch.cat(act), torch.cat(gs)
        h = body(o)
        q, v = torch.distributions.Categorical(logits=pi(h)), val(h).squeeze(1)
        return -(q.log_prob(u) * (g - v.detach())).mean() + F.smooth_l1_loss(v, g) - 0.01 * q.entropy().mean()

    return nn.ModuleList([body, pi, val]), loss


def physics():
    n, w = pick([2000, 20000]), pick([64, 256])
    m = nn.Sequential(
        nn.Linear(2, w),
        nn.Tanh(),
        *[l for _ in range(R.randint(2, 5)) for l in (nn.Linear(w, w), nn.Tanh())],
        nn.Linear(w, 1),
    )

    def loss():
        x = torch.rand(n, 2, device=D, requires_grad=True)
        u = m(x)
        (g,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (h,) = torch.autograd.grad(g[:, 0].sum(), x, create_graph=True)
        return (g[:, 1] - 0.1 * h[:, 0] + u[:, 0] * g[:, 0]).square().mean()

    return m, loss


def samples():
    m = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
    b = pick([64, 256])

    def loss():
        p = dict(m.named_parameters())
        x, y = torch.randn(b, 256, device=D), torch.randint(0, 10, (b,), device=D)
        one = lambda q, u, v: F.cross_entropy(torch.func.functional_call(m, q, u[None]), v[None])
        g = torch.func.vmap(torch.func.grad(one), (None, 0, 0))(p, x, y)
        norms = sum(v.flatten(1).square().sum(1) for v in g.values()).sqrt()
        return sum(
            (v * p[k]).mean()
            for k, v in (
                (k, (t / norms.clamp(min=1).view(-1, *[1] * (t.dim() - 1))).detach().mean(0))
                for k, t in g.items()
            )
        )

    return m, loss


def lora():
    d = pick([512, 1024])

    class Low(nn.Module):
        def __init__(self, base, r):
            super().__init__()
            self.base, self.a, self.b = (
                base.requires_grad_(False),
                nn.Linear(base.in_features, r, bias=False),
                nn.Linear(r, base.out_features, bias=False),
            )
            nn.init.zeros_(self.b.weight)

        def forward(self, x):
            return self.base(x) + 2 * self.b(self.a(x))

    body = stack(d, True).requires_grad_(False)
    r = pick([4, 16, 64])
    for blk in body.bs:
        blk.at.qkv, blk.at.o = Low(blk.at.qkv, r), Low(blk.at.o, r)
    emb, head = (
        nn.Embedding(32000, d).requires_grad_(False),
        nn.Linear(d, 32000, bias=False).requires_grad_(False),
    )
    b, t = R.randint(1, 8), pick([128, 512])

    def loss():
        x = torch.randint(0, 32000, (b, t), device=D)
        return F.cross_entropy(head(body(emb(x)))[:, :-1].flatten(0, 1), x[:, 1:].flatten())

    return nn.ModuleList([body, emb, head]), loss


def fourier():
    d, t, b = pick([128, 256]), pick([256, 512]), R.randint(4, 16)
    ls = nn.ModuleList(
        nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d)) for _ in range(3)
    )

    def loss():
        x = torch.randn(b, t, d, device=D)
        for l in ls:
            x = x + torch.fft.fft2(x.float()).real.to(x.dtype)
            x = x + l(x)
        return x.square().mean()

    return ls, loss


def convolutions():
    c, s, b = pick([16, 32]), pick([64, 128]), R.randint(4, 16)
    m = nn.Sequential(
        nn.Conv2d(3, c, 3, padding=1),
        nn.GroupNorm(8, c),
        nn.SiLU(),
        nn.Conv2d(c, 2 * c, 3, 2, 1),
        nn.BatchNorm2d(2 * c),
        nn.ReLU(),
        nn.ConvTranspose2d(2 * c, c, 2, 2),
        nn.MaxPool2d(2),
        nn.Upsample(scale_factor=2, mode=pick(["nearest", "bilinear"])),
        nn.Conv2d(c, 1, 1),
    )
    return m, lambda: F.binary_cross_entropy_with_logits(
        m(torch.randn(b, 3, s, s, device=D)).float(), torch.rand(b, 1, s, s, device=D)
    )


def ctc():
    b, t, v = R.randint(4, 32), pick([200, 400]), pick([40, 500])
    m = nn.Sequential(nn.Linear(80, 512), nn.ReLU(), nn.LayerNorm(512), nn.Linear(512, v))

    def loss():
        lp = m(torch.randn(t, b, 80, device=D)).float().log_softmax(-1)
        return F.ctc_loss(
            lp,
            torch.randint(1, v, (b, 30), device=D),
            torch.full((b,), t, dtype=torch.long),
            torch.full((b,), 30, dtype=torch.long),
        )

    return m, loss


def gaussian():
    n = pick([500, 1500])
    m = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4))
    x, y = torch.randn(n, 8, device=D), torch.randn(n, 1, device=D)

    def loss():
        f = m(x).float()
        k = torch.exp(-0.5 * torch.cdist(f, f).square()) + 0.1 * torch.eye(n, device=D)
        c = torch.linalg.cholesky(k)
        return (y.t() @ torch.cholesky_solve(y, c)).squeeze() / n + 2 * c.diagonal().log().mean()

    return m, loss


def teacher():
    import copy

    d = 256
    m = stack(d, False)
    t = copy.deepcopy(m).requires_grad_(False).to(D)
    b = R.randint(4, 24)

    def loss():
        x = torch.randn(b, 128, d, device=D)
        with torch.no_grad():
            for p, q in zip(t.parameters(), m.parameters()):
                p.lerp_(q, 0.01)
            y = t(x)
        return F.kl_div(
            F.log_softmax(m(x).float(), -1),
            F.log_softmax(y.float(), -1),
            log_target=True,
            reduction="batchmean",
        )

    return m, loss


def relative():
    d, h, t, b = 256, 8, pick([128, 256]), R.randint(2, 12)
    emb, q, f = nn.Embedding(32, h), nn.Linear(d, 3 * d), nn.Linear(d, d)

    def loss():
        x = torch.randn(b, t, d, device=D)
        p = torch.arange(t, device=D)
        bias = emb((p[None] - p[:, None]).clamp(-15, 15) + 15).permute(2, 0, 1)[None]
        a, k, v = q(x).view(b, t, 3, h, d // h).permute(2, 0, 3, 1, 4)
        y = (
            F.scaled_dot_product_attention(a, k, v, attn_mask=bias.to(a.dtype))
            if R.random() < 0.5
            else (a @ k.transpose(-1, -2) + bias).softmax(-1) @ v
        )
        return f(y.transpose(1, 2).flatten(2)).square().mean()

    return nn.ModuleList([emb, q, f]), loss


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return g * (s * (1 + x * (1 - s)))


def custom():
    d, b = pick([1024, 2048]), pick([1024, 4096])
    ls = nn.ModuleList(nn.Linear(d, d) for _ in range(R.randint(2, 6)))

    def loss():
        x = torch.randn(b, d, device=D)
        for l in ls:
            x = Swish.apply(l(x))
        return F.huber_loss(x, torch.zeros_like(x))

    return ls, loss


def tabular():
    b, n = pick([1024, 8192]), R.randint(4, 20)
    em = nn.ModuleList(nn.Embedding(R.randint(10, 2000), 16) for _ in range(n))
    m = nn.Sequential(
        nn.BatchNorm1d(16 * n),
        nn.Linear(16 * n, 512),
        nn.GLU(),
        nn.Dropout(0.3),
        nn.Linear(256, 256),
        nn.PReLU(),
        nn.Linear(256, 3),
    )

    def loss():
        x = torch.cat([e(torch.randint(0, e.num_embeddings, (b,), device=D)) for e in em], 1)
        o = m(x)
        return (
            F.multi_margin_loss(o, torch.randint(0, 3, (b,), device=D))
            if R.random() < 0.5
            else F.gaussian_nll_loss(o, torch.zeros_like(o), torch.ones_like(o))
        )

    return nn.ModuleList([em, m]), loss


def hf(name, **kw):
    import transformers as T

    def make():
        cfg = getattr(T, name + "Config")(**kw)
        tail = {
            "Bert": "ForSequenceClassification",
            "Roberta": "ForMaskedLM",
            "Electra": "ForPreTraining",
            "DebertaV2": "ForTokenClassification",
            "DistilBert": "ForQuestionAnswering",
            "T5": "ForConditionalGeneration",
            "Bart": "ForConditionalGeneration",
            "ViT": "ForImageClassification",
            "GPT2": "LMHeadModel",
            "Albert": "ForMaskedLM",
        }.get(name, "ForCausalLM")
        m = getattr(T, name + tail)(cfg)
        if R.random() < 0.3 and m.supports_gradient_checkpointing:
            m.gradient_checkpointing_enable()
        b, t = R.randint(2, 10), pick([64, 128, 200])

        def loss():
            if name == "ViT":
                return m(
                    pixel_values=torch.randn(b, 3, 224, 224, device=D),
                    labels=torch.randint(0, 2, (b,), device=D),
                ).loss
            x = torch.randint(5, 900, (b, t), device=D)
            if name == "Bert":
                return m(
                    input_ids=x, attention_mask=torch.ones_like(x), labels=torch.randint(0, 2, (b,), device=D)
                ).loss
            if name == "DistilBert":
                return m(
                    input_ids=x,
                    start_positions=torch.randint(0, t, (b,), device=D),
                    end_positions=torch.randint(0, t, (b,), device=D),
                ).loss
            return m(input_ids=x, labels=x % 2 if name in ("DebertaV2", "Electra") else x).loss

        return m, loss

    return make


S = dict(hidden_size=256, num_hidden_layers=3, num_attention_heads=8, intermediate_size=704, vocab_size=9000)
G = dict(S, num_key_value_heads=2)
HF = [
    hf("GPT2", n_embd=256, n_layer=4, n_head=8, vocab_size=9000),
    hf("Llama", **G),
    hf("Mistral", **G, sliding_window=64),
    hf("Qwen2", **G),
    hf("Qwen3", **G, head_dim=32),
    hf("Gemma2", **G, head_dim=32, sliding_window=64),
    hf("Phi3", **G, pad_token_id=0),
    hf(
        "OPT",
        hidden_size=256,
        num_hidden_layers=3,
        num_attention_heads=8,
        ffn_dim=1024,
        vocab_size=9000,
        word_embed_proj_dim=256,
    ),
    hf("Bloom", hidden_size=256, n_layer=3, n_head=8, vocab_size=9000),
    hf("GPTNeoX", **S),
    hf("Olmo2", **G),
    hf("Cohere", **G),
    hf("StableLm", **G),
    hf("Granite", **G),
    hf("Bert", **S),
    hf("Roberta", **S),
    hf("Albert", **S, embedding_size=128),
    hf("Electra", **S, embedding_size=128),
    hf("DistilBert", dim=256, n_layers=3, n_heads=8, hidden_dim=1024, vocab_size=9000),
    hf(
        "T5",
        d_model=256,
        d_kv=32,
        d_ff=1024,
        num_layers=3,
        num_heads=8,
        vocab_size=9000,
        decoder_start_token_id=0,
    ),
    hf(
        "Bart",
        d_model=256,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=1024,
        decoder_ffn_dim=1024,
        vocab_size=9000,
    ),
    hf("ViT", hidden_size=192, num_hidden_layers=4, num_attention_heads=3, intermediate_size=768),
    hf("SmolLM3", **G, pad_token_id=0),
    hf("Falcon", hidden_size=256, num_hidden_layers=3, num_attention_heads=8, vocab_size=9000),
]
FAMILIES = [
    gpt,
    chunked,
    seq2seq,
    encoder,
    vit,
    recurrent,
    graph,
    dlrm,
    vae,
    gan,
    perceiver,
    linear_attention,
    nerf,
    clip,
    experts,
    policy,
    physics,
    samples,
    lora,
    fourier,
    convolutions,
    ctc,
    gaussian,
    teacher,
    relative,
    custom,
    tabular,
]
ALL = FAMILIES + FAMILIES + HF + FAMILIES
FAMILY = ALL[N % len(ALL)]
model, loss = FAMILY()
model.to(D)
O = torch.optim
params = [p for p in model.parameters() if p.requires_grad]
opt = pick(
    [
        lambda: O.SGD(params, 1e-3),
        lambda: O.SGD(params, 1e-3, momentum=0.9, nesterov=True),
        lambda: O.Adam(params, 1e-4),
        lambda: O.Adam(params, 1e-4, amsgrad=True),
        lambda: O.AdamW(params, 1e-4),
        lambda: O.AdamW(params, 1e-4, foreach=False),
        lambda: O.AdamW(params, 1e-4, fused=True),
        lambda: O.RMSprop(params, 1e-4, momentum=0.5, centered=True),
        lambda: O.Adagrad(params, 1e-3),
        lambda: O.Adadelta(params),
        lambda: O.NAdam(params, 1e-4),
        lambda: O.RAdam(params, 1e-4),
        lambda: O.Adamax(params, 1e-4),
        lambda: O.Adafactor(params, 1e-3),
        lambda: O.ASGD(params, 1e-4),
        lambda: O.Rprop(params, 1e-4),
    ]
)()
mode = pick(["fp32", "fp32", "bf16", "fp16", "tf32"])
if FAMILY in (gaussian, fourier, physics, samples, ctc) and mode == "fp16":
    mode = "fp32"
if mode == "tf32":
    torch.backends.cuda.matmul.allow_tf32 = True
clipping, accumulate, none = pick([None, 1.0]), pick([1, 1, 2]), pick([True, True, False])
scaler = torch.amp.GradScaler("cuda", enabled=mode == "fp16")
for step in range(4):
    for _ in range(accumulate):
        with torch.autocast(
            "cuda", torch.float16 if mode == "fp16" else torch.bfloat16, enabled=mode in ("bf16", "fp16")
        ):
            l = loss() / accumulate
        scaler.scale(l).backward()
    if clipping:
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(params, clipping)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad(set_to_none=none)
family = getattr(FAMILY, "__name__") if FAMILY in FAMILIES else type(model).__name__
print(
    "PEAK",
    json.dumps(
        {
            "n": N,
            "family": family,
            "mode": mode,
            "optimizer": type(opt).__name__,
            "allocated": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.max_memory_reserved(),
        }
    ),
)
