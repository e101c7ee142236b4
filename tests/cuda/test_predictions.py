"""Predicted peaks held byte for byte against torch's own counters on its genuine allocator."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from standin_fixtures import TORCH  # noqa: E402

from vramscope.prediction import Prediction, predict  # noqa: E402

pytestmark = [
    pytest.mark.standin,
    pytest.mark.skipif(
        not torch.__version__.startswith(TORCH),
        reason="a dry run by one version of torch says nothing of another",
    ),
]

MODEL = """
import math, torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
torch.backends.cudnn.enabled = False
torch.backends.cuda.enable_cudnn_sdp(False)

class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.n1, self.n2 = h, nn.LayerNorm(d), nn.RMSNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.f = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d), nn.Dropout(0.1))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.h, -1).transpose(1, 2) for y in self.qkv(self.n1(x)).split(c, 2))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, c))
        return x + self.f(self.n2(x))

class Net(nn.Module):
    def __init__(self, d=192, layers=3, v=5000):
        super().__init__()
        self.e, self.n, self.head = nn.Embedding(v, d), nn.LayerNorm(d), nn.Linear(d, v, bias=False)
        self.blocks = nn.ModuleList(Block(d, 3) for _ in range(layers))

    def forward(self, ids, again):
        x = self.e(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if again else block(x)
        return F.cross_entropy(self.head(self.n(x)).flatten(0, 1), ids.flatten())

def train(make, dtype=None, again=False, times=1, clip=False, length=512):
    model = Net().cuda()
    optimizer = make(model.parameters())
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
    for _ in range(3):
        for _ in range(times):
            ids = torch.randint(0, 5000, (8, length)).to("cuda")
            with torch.autocast("cuda", dtype=dtype or torch.float16, enabled=dtype is not None):
                loss = model(ids, again) / times
            scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""

PENALTY = """
net = nn.Sequential(nn.Linear(768, 512), nn.Tanh(), nn.Linear(512, 256), nn.Tanh(), nn.Linear(256, 1)).cuda()
optimizer = torch.optim.Adam(net.parameters())
for _ in range(2):
    real, made = torch.rand(64, 768, device="cuda"), torch.rand(64, 768, device="cuda")
    between = (real + made).requires_grad_()
    (slope,) = torch.autograd.grad(net(between).sum(), between, create_graph=True)
    loss = net(made).mean() - net(real).mean() + ((slope.norm(dim=1) - 1) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

STREAMS = """
one, two = nn.Linear(700, 900).cuda(), nn.Linear(700, 900).cuda()
optimizer = torch.optim.SGD([*one.parameters(), *two.parameters()], lr=0.1)
side, early = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
for step in range(3):
    with torch.cuda.stream(early):
        batch = torch.rand(3000, 700).to("cuda", non_blocking=True)
    torch.cuda.current_stream().wait_stream(early)
    batch.record_stream(torch.cuda.current_stream())
    with side:
        left = checkpoint(lambda x: two(x).tanh().relu() @ torch.rand(900, 300, device="cuda"), batch,
                          use_reentrant=False)
    torch.cuda.set_stream(side if step == 1 else torch.cuda.default_stream())
    right = one(batch).tanh()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.set_stream(torch.cuda.default_stream())
    (left.sum() + right.sum()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""

GRAPHS = """
net = nn.Sequential(nn.Linear(300, 700), nn.Dropout(0.1), nn.ReLU(), nn.Linear(700, 300)).cuda()
optimizer = torch.optim.Adam(net.parameters(), capturable=True)
given = torch.randn(1000, 300, device="cuda")

def step():
    optimizer.zero_grad(set_to_none=True)
    loss = net(given).pow(2).mean()
    loss.backward()
    optimizer.step()

side = torch.cuda.Stream()
with torch.cuda.stream(side):
    step()
graph, other = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
with torch.no_grad(), torch.cuda.graph(other, pool=graph.pool()):
    kept = net(given)
graph.replay()
del graph, other
more = torch.zeros(30_000_000, device="cuda")
"""

SEVERAL_CARDS = """
net = nn.DataParallel(nn.Sequential(nn.Linear(300, 700), nn.Tanh(), nn.Linear(700, 300))).cuda()
optimizer = torch.optim.Adam(net.parameters())
for _ in range(2):
    net(torch.randn(1000, 300)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

# T5's: one number a distance and head. Transposed, its last dimension is apart, and no fused kernel takes it.
BIAS = """
near, made = nn.Embedding(63, 4).cuda(), nn.Linear(128, 384).cuda()
optimizer = torch.optim.SGD([*near.parameters(), *made.parameters()], lr=0.1)
for _ in range(2):
    parts = made(torch.randn(6, 32, 128, device="cuda")).chunk(3, 2)
    q, k, v = (part.view(6, 32, 4, 32).transpose(1, 2) for part in parts)
    at = torch.arange(32, device="cuda")
    bias = near(at[None] - at[:, None] + 31).permute(2, 0, 1)[None]
    F.scaled_dot_product_attention(q, k, v, attn_mask=bias{then}).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

LAZY = """
net = nn.Sequential(nn.LazyLinear(300), nn.Tanh(), nn.LazyLinear(70), nn.ReLU(), nn.LazyLinear(1)).cuda()
net(torch.randn(4, 90, device="cuda"))
optimizer = torch.optim.Adam(net.parameters())
for _ in range(2):
    net(torch.randn(1000, 90, device="cuda")).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

# Without cuDNN. Of packed sequences, the steps have a node each, and the batch shrinks or grows.
RECURRENT = """
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
words, net = nn.Embedding(900, 96).cuda(), nn.{layer}.cuda()
optimizer = torch.optim.SGD([*words.parameters(), *net.parameters()], lr=0.1)
for _ in range(2):
    batch = words(torch.randint(0, 900, ({shape})).to("cuda"))
    if {packed}:
        lengths = torch.tensor([max(3, 29 - i * 7 % 20) for i in range(37)])
        batch = pack_padded_sequence(batch, lengths, batch_first=True, enforce_sorted=False)
    out = net(batch)[0]
    out = pad_packed_sequence(out, batch_first=True)[0] if {packed} else out
    out.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
CELLS = """
one, two = nn.GRUCell(96, 160).cuda(), nn.LSTMCell(160, 96, bias=False).cuda()
optimizer = torch.optim.SGD([*one.parameters(), *two.parameters()], lr=0.1)
for _ in range(2):
    state, pair, out = None, None, []
    for step in torch.randn(30, 64, 96, device="cuda").unbind(0):
        state = one(step, state)
        pair = two(state, pair)
        out.append(pair[0])
    torch.stack(out).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def _recurrent(layer: str, shape: str, *, packed: bool = False) -> str:
    return RECURRENT.format(layer=layer, shape=shape, packed=packed)


SHIFTED = """
table = nn.Parameter(torch.zeros(169, 3, device="cuda"))
rows = torch.arange(2401, device="cuda") % 169
for _ in range(2):
    windows = torch.roll(torch.randn(24, 56, 56, 48, device="cuda"), (-3, -3), (1, 2))
    (windows.mean() + table[rows].square().mean()).backward()
    table.grad = None
"""

LISTS = """
many, factors = [torch.ones(300, 700, device="cuda") for _ in range(3)], torch.full((3,), 0.5)
for _ in range(2):
    made = torch._foreach_addcdiv(many, many, many, factors)
    torch._foreach_addcmul_(made, many, torch._foreach_addcmul(many, many, many, factors), factors)
"""

RUNS = {
    "packed sequences": _recurrent(
        "LSTM(96, 160, 2, batch_first=True, bidirectional=True)", "37, 29", packed=True
    ),
    "recurrent layers with dropout": _recurrent("RNN(96, 160, 3, 'relu', dropout=0.2)", "29, 37"),
    "a projection": _recurrent("LSTM(96, 160, proj_size=64, bidirectional=True)", "29, 37"),
    "recurrent cells": CELLS,
    "shifted windows": SHIFTED,
    "float32 with AdamW": "train(torch.optim.AdamW)",
    "bfloat16 and a fused optimizer": "train(lambda p: torch.optim.AdamW(p, fused=True), torch.bfloat16)",
    "float16 with a scaler and clipping": "train(torch.optim.AdamW, torch.float16, clip=True)",
    "checkpoints": "train(torch.optim.AdamW, again=True)",
    "checkpoints in bfloat16": "train(torch.optim.AdamW, torch.bfloat16, again=True)",
    "accumulation with momentum": "train(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), times=3)",
    # The engine's order: nodes that CUDA's own thread makes are numbered by that thread.
    "a gradient penalty": PENALTY,
    # Each has its own blocks and workspaces, in backward those of its forward.
    "streams": STREAMS,
    "CUDA graphs": GRAPHS,
    "nn.DataParallel on one card": SEVERAL_CARDS,
    "a learned mask in one piece": BIAS.replace("{then}", ".contiguous()"),
    "a learned mask, transposed": BIAS.replace("{then}", ""),
    "lazy modules": LAZY,
    "numbers in a tensor for a list of tensors": LISTS,
    "an odd length": "train(torch.optim.Adam, torch.bfloat16, length=333)",
}


def _predicted(text: str, **options: Any) -> Prediction:
    was_on = torch.backends.cudnn.enabled, torch.backends.cuda.cudnn_sdp_enabled()
    try:
        return predict(lambda: exec(compile(text, "<program>", "exec"), {}), steps=None, **options)
    finally:
        torch.backends.cudnn.enabled = was_on[0]
        torch.backends.cuda.enable_cudnn_sdp(was_on[1])


@pytest.mark.parametrize("name", RUNS)
def test_a_predicted_peak_is_the_one_that_torch_counts(run_standin: Any, name: str):
    text = MODEL + RUNS[name]
    truth = run_standin(
        text + "\nanswer = [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]"
    )

    found = _predicted(text)

    assert [found.peak_allocated_bytes, found.peak_reserved_bytes] == truth
    assert found.certainty == "checked"


BRANCHES = """
net = nn.Sequential(nn.Linear(256, 1024), nn.Tanh(), nn.Linear(1024, 256)).cuda()
critic = nn.Linear(256, 4096).cuda()
optimizer, best, kept = torch.optim.AdamW(net.parameters()), math.inf, None
for _ in range(4):
    out = net(torch.randn(512, 256, device="cuda"))
    loss = out.square().mean()
    {before}
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    {after}
    optimizer.zero_grad()
"""
STEP = "optimizer.step()"
CHOICES = {
    "the best model so far": ("", STEP + """
    if (loss.item() < best):
        best, kept = loss.item(), {name: one.clone() for name, one in net.state_dict().items()}"""),
    "a step that is skipped": ("", "if (norm > 1e-3):\n        optimizer.step()"),
    "a term of the loss": ("if (loss > 0.05):\n        loss = loss + critic(out).square().mean()", STEP),
    "a number of Python": (
        "if (float(loss) > 0.05):\n        kept = [kept, critic(out.detach())]", STEP
    ),
}  # fmt: skip


IN_FORKS = """
import json, os

def peak(text):
    receiving, sending = os.pipe()
    if not os.fork():
        exec(compile(text, "<program>", "exec"), {})
        os.write(sending, str(torch.cuda.max_memory_allocated()).encode())
        os._exit(0)
    os.close(sending)
    with os.fdopen(receiving) as pipe:
        return int(pipe.read())

answer = [[peak(text) for text in each] for each in json.loads(TEXTS)]
"""


def test_the_range_holds_whatever_a_value_decides(run_standin: Any):
    texts = []
    for before, after in CHOICES.values():
        text = MODEL + BRANCHES.replace("{before}", before).replace("{after}", after)
        begin = text.index("if (") + len("if ")
        condition = text[begin : text.index("):\n", begin) + 1]
        # With the values of this run, and as if they were always others.
        texts.append([text.replace(condition, each) for each in (condition, "True", "False")])
    truths = run_standin(f"import torch\nTEXTS = {json.dumps(json.dumps(texts))}" + IN_FORKS)

    found = [_predicted(text) for text, *_ in texts]

    assert {each.certainty for each in found} == {"estimate"}
    assert [each.range_bytes for each in found] == [(min(each), max(each)) for each in truths]


OUT_OF_MEMORY = """
import traceback
try:
    train(torch.optim.AdamW)
    answer = None
except torch.OutOfMemoryError as error:
    trace = traceback.extract_tb(error.__traceback__)
    answer = [frame.lineno for frame in trace if frame.filename == __file__][-1]
"""


def _assert_in_range(run_standin: Any, text: str) -> None:
    truth = run_standin(text + "answer = torch.cuda.max_memory_allocated()")

    found = _predicted(text)

    assert found.certainty == "estimate"
    low, high = found.range_bytes
    assert high is not None
    assert low <= truth <= high


_FUSED = {
    "an encoder": "net(source)",
    "an encoder with padding": "net(source, src_key_padding_mask=mask)",
    "attention": "net.layers[0].self_attn(source, source, source, need_weights=False)",
    "attention with padding": "net.layers[0].self_attn(source, source, source, key_padding_mask=mask)",
}


@pytest.mark.parametrize("form", _FUSED)
def test_the_range_holds_a_layer_that_is_one_operator_on_cuda(run_standin: Any, form: str):
    text = MODEL + (
        "layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)\n"
        "net = nn.TransformerEncoder(layer, 3).cuda().eval()\n"
        "source = torch.randn(64, 128, 64, device='cuda')\n"
        "mask = (torch.arange(128) >= torch.arange(65, 129)[:, None]).cuda()\n"
        f"with torch.inference_mode():\n    {_FUSED[form]}\n"
    )
    _assert_in_range(run_standin, text)


def test_lists_of_tensors_and_drawn_numbers_take_what_torch_counts(run_standin: Any):
    text = MODEL + (
        "many = [torch.rand(n, 77, device='cuda') for n in (1, 300, 5000)]\n"
        "kept = [getattr(torch, f'_foreach_{name}')(many) for name in ('rsqrt', 'clone', 'log1p', 'sign')]\n"
        "torch._foreach_pow_(many, 2.0)\ntorch._foreach_abs_(many)\ntorch._foreach_tanh_(many)\n"
        "kept += [torch.normal(many[2], 0.5), torch.normal(0.0, 1.0, (999, 99), device='cuda')]\n"
        "kept += [torch.randint_like(many[1], 5), torch.diagonal_copy(many[1]), many[2].random_()]\n"
        "kept += [torch.normal(kept[0][2])]\n"
    )
    truth = run_standin(text + "answer = torch.cuda.max_memory_allocated()")

    found = _predicted(text)

    assert (found.peak_allocated_bytes, found.reasons) == (truth, ())


_DRAWN = {
    "binomial": "torch.binomial(a, a)",
    "shares": "torch._sample_dirichlet(a)",
    "gradients of draws": "[torch._standard_gamma_grad(a, a), torch._dirichlet_grad(a, a, a)]",
    "scattered in place": "a.masked_scatter_(a > 2, a + 1)",
    "scattered by rows": "a.masked_scatter(a[:, :1] > 2, a)",
    "repeated": "torch.repeat_interleave(torch.ones(999, device='cuda').long(), output_size=999)",
}


@pytest.mark.parametrize("name", _DRAWN)
def test_what_is_drawn_scattered_or_repeated_takes_what_torch_counts(run_standin: Any, name: str):
    # Without a backward pass, whose peak would hide it.
    text = f"import torch\na = torch.ones(999, 777, device='cuda')\nkept = {_DRAWN[name]}\n"
    truth = run_standin(text + "answer = torch.cuda.max_memory_allocated()")

    found = _predicted(text)

    assert (found.peak_allocated_bytes, found.reasons) == (truth, ())


def test_validation_by_an_encoder_leaves_the_peak_of_its_training_exact(run_standin: Any):
    text = MODEL + (
        "layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)\n"
        "net = nn.TransformerEncoder(layer, 8).cuda()\n"
        "mask = (torch.arange(128) >= torch.arange(65, 129)[:, None]).cuda()\n"
        "for _ in range(2):\n"
        "    source = torch.randn(64, 128, 64, device='cuda')\n"
        "    net.train()(source, src_key_padding_mask=mask).sum().backward()\n"
        "    with torch.no_grad():\n        net.eval()(source, src_key_padding_mask=mask)\n"
    )
    truth = run_standin(text + "answer = torch.cuda.max_memory_allocated()")

    found = _predicted(text)

    assert (found.peak_allocated_bytes, found.range_bytes) == (truth, (truth, truth))


@cache
def _whole_bytes() -> int:
    return _predicted(MODEL + RUNS["float32 with AdamW"]).peak_reserved_bytes


_BETWEEN = [
    pytest.param(share, marks=pytest.mark.exhaustive) for share in (0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9)
]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.97, *_BETWEEN])
def test_memory_runs_out_at_the_line_where_torch_says_so(run_standin: Any, tmp_path: Path, share: float):
    room_mib = int(_whole_bytes() * share) // (1 << 20)
    # run_standin writes its own lines before the script's.
    truth = run_standin(MODEL + OUT_OF_MEMORY, STANDIN_TOTAL_MIB=500 + room_mib)
    before = (tmp_path / "script.py").read_text().index(MODEL[:40])
    n_before = (tmp_path / "script.py").read_text()[:before].count("\n")
    program = tmp_path / "program.py"
    program.write_text("\n" * n_before + MODEL + RUNS["float32 with AdamW"])

    found = predict(
        lambda: exec(compile(program.read_text(), str(program), "exec"), {}),
        steps=None,
        capacity=(742 + room_mib) << 20,  # the contexts of the stand-in and of an H100
    )

    # On torch 2.15, which keeps no workspaces, a little less than is reserved without a limit is enough.
    assert found.fits is (truth is None)
    assert found.out_of_memory == (truth and f"program.py:{truth}")


SCRIPTS = str(Path(__file__).parent / "scripts")


def test_every_operator_takes_on_the_allocator_what_the_table_says(run_standin: Any):
    import operator_samples

    truth = run_standin(
        f"import sys; sys.path.insert(0, {SCRIPTS!r})\n"
        "import operator_samples\nanswer = operator_samples.peaks()"
    )

    found = operator_samples.predicted_peaks()

    wrong = {name for name in truth if abs(found[name] - truth[name]) > operator_samples.NEARLY.get(name, 0)}
    assert {name: (found[name], truth[name]) for name in wrong} == {}


@pytest.mark.parametrize("n", [999, 3_000_000])
def test_the_range_holds_repeats_of_32_bits(run_standin: Any, n: int):
    text = (
        f"import torch\nrepeats = torch.ones({n}, device='cuda', dtype=torch.int32)\n"
        f"kept = torch.repeat_interleave(repeats, output_size={n})\n"
    )
    _assert_in_range(run_standin, text)
