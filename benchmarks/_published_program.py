"""One training of which a figure was published, rebuilt: ``python _published_program.py '{"program": "bert", …}'``.

Each function is a training as its page describes it; what a page leaves open, or what torch did otherwise in its
year, is an option, which the row of the table names.
"""

import json
import os
import sys
from functools import partial

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from _published_models import Decoder, Shape, Vision, WithLow
from torch import nn
from torch.nn import functional as F

MODELS = {
    "phi-1.5": Shape(
        51200,
        2048,
        24,
        32,
        8192,
        bias=True,
        is_gated=False,
        is_parallel=True,
        norms=1,
        rotary_share=0.5,
        head_bias=True,
    ),
    "stablelm-3b": Shape(
        50688, 4096, 16, 32, 16384, bias=True, is_gated=False, is_parallel=True, rotary_share=0.25
    ),
    "llama-2-7b": Shape(32000, 4096, 32, 32, 11008),
    "llama-2-13b": Shape(32000, 5120, 40, 40, 13824),
    "falcon-40b": Shape(65024, 8192, 60, 128, 32768, groups=8, is_gated=False, is_parallel=True),
    "llama-3.2-3b": Shape(128256, 3072, 28, 24, 8192, groups=8, norm="after", rotary="pairs", is_tied=True),
    "llama-3.1-8b": Shape(128256, 4096, 32, 32, 14336, groups=8, norm="torch", rotary="complex"),
}
VISION = {
    "vit-l/16": {
        "width": 1024,
        "layers": 24,
        "heads": 16,
        "inner": 4096,
        "patch": 16,
        "way": "torchvision",
        "is_gated": False,
    },
    "vit-h/14": {
        "width": 1280,
        "layers": 32,
        "heads": 16,
        "inner": 5120,
        "patch": 14,
        "way": "timm",
        "is_gated": False,
    },
    "vit-g/14": {
        "width": 1536,
        "layers": 40,
        "heads": 24,
        "inner": 8192,
        "patch": 14,
        "way": "timm",
        "is_gated": True,
    },
}


def tokens(vocabulary: int, batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, (batch, length)).cuda()


class KeptSoftmax(torch.autograd.Function):
    """Softmax as torch made it before 1.11: its input is kept until the backward, beside its output."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(x, -1)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
        x, y = ctx.saved_tensors
        return torch._softmax_backward_data(grad, y, -1, x.dtype)


def attention_of_2022(
    module: nn.Module,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    **more: object,
) -> tuple:
    """Plain attention, with the softmax of torch before 1.11."""
    scores = torch.matmul(q, k.transpose(2, 3)) * q.shape[-1] ** -0.5
    scores = scores if mask is None else scores + mask
    scores = scores.float() if torch.is_autocast_enabled("cuda") else scores
    weights = F.dropout(KeptSoftmax.apply(scores), p=0.1, training=module.training)
    return torch.matmul(weights, v).transpose(1, 2).contiguous(), weights


class PlainAdamW(torch.optim.Optimizer):
    """AdamW as transformers had it in 2022: one parameter after the other, states at the first step."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 5e-5})

    @torch.no_grad()
    def step(self) -> None:
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            state = self.state[p]
            if not state:
                state.update(first=torch.zeros_like(p), second=torch.zeros_like(p))
            state["first"].mul_(0.9).add_(p.grad, alpha=0.1)
            state["second"].mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
            p.addcdiv_(state["first"], state["second"].sqrt().add_(1e-8), value=-5e-5)


def bert(
    batch: int,
    times: int,
    *,
    checkpoints: bool = False,
    half: bool = False,
    adafactor: bool = False,
    keeps_input: bool = True,
) -> None:
    """bert-large for classification, 512 tokens, by the Trainer of 2022."""
    import transformers
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register("of_2022", attention_of_2022)
    config = transformers.BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    )
    config._attn_implementation = "of_2022" if keeps_input else "eager"
    model = transformers.BertForSequenceClassification(config).to("cuda").train()
    if checkpoints:
        model.gradient_checkpointing_enable({"use_reentrant": True})
    chosen = list(model.parameters())
    optimizer = (
        transformers.Adafactor(chosen, lr=5e-5, relative_step=False, scale_parameter=False)
        if adafactor
        else PlainAdamW(chosen)
    )
    scaler = torch.amp.GradScaler("cuda", enabled=half)
    for _ in range(3):
        for _ in range(times):
            ids, labels = tokens(30522, batch, 512), torch.zeros(batch, dtype=torch.long).cuda()
            with torch.autocast("cuda", torch.float16, enabled=half):
                loss = model(input_ids=ids, labels=labels).loss
            scaler.scale(loss / times).backward()
            loss = loss.detach()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(chosen, 1.0, foreach=False)
        scaler.step(optimizer)
        scaler.update()
        model.zero_grad(set_to_none=False)


def by_rows(parts: list[torch.Tensor], goals: torch.Tensor) -> torch.Tensor:
    """The loss of logits that come 128 tokens at a time."""
    pairs = zip(parts, goals.split(128, dim=1), strict=True)
    losses = [
        F.cross_entropy(part.reshape(-1, part.size(-1)), goal.reshape(-1), reduction="none")
        for part, goal in pairs
    ]
    return torch.cat(losses).mean()


def low_rank(model: str, batch: int, length: int, *, norm: str = "") -> None:
    """LoRA of queries and values in bfloat16, the head 128 tokens at a time, as lit-gpt's ``finetune/lora.py``."""
    shape = MODELS[model]
    shape.low_rank, shape.norm = True, norm or shape.norm
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        net = Decoder(shape)
    torch.set_default_dtype(torch.float32)
    for name, p in net.named_parameters():
        p.requires_grad = ".attention.down." in name or ".attention.up." in name
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=3e-4)
    for longest in (128, length, 128):  # one example of the data set is as long, and few are half as long
        for at in range(2):
            ids = tokens(shape.vocabulary, batch, 128 if at else longest)
            parts = [
                part.float() for part in net(ids, rows=128)
            ]  # Fabric gives what a model returns back in float32
            parts[-1] = parts[-1][..., :-1, :]
            (by_rows(parts, ids[..., 1:]) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


def stepped(optimizer: torch.optim.Optimizer, _: torch.Tensor) -> None:
    """What a hook does where the optimizer's step is part of the backward."""
    optimizer.step()
    optimizer.zero_grad()


def descended(p: torch.Tensor) -> None:
    """The update of LOMO, without a state."""
    p.data.add_(p.grad, alpha=-1e-3)
    p.grad = None


def full(
    model: str,
    batch: int,
    length: int,
    *,
    checkpoints: bool = False,
    chunks: int = 0,
    in_backward: bool = False,
) -> None:
    """All weights in bfloat16 with AdamW, logits in float32, as torchtune's recipe for one device."""
    shape = MODELS[model]
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        net = Decoder(shape)
    torch.set_default_dtype(torch.float32)
    net.checkpoints = checkpoints
    groups = [[p] for p in net.parameters()] if in_backward else [list(net.parameters())]
    optimizers = [torch.optim.AdamW(group, lr=2e-5, fused=True) for group in groups]
    if in_backward:
        for (p,), optimizer in zip(groups, optimizers, strict=True):
            p.register_post_accumulate_grad_hook(partial(stepped, optimizer))
    for _ in range(3):
        ids = tokens(shape.vocabulary, batch, length)
        parts = net(ids, rows=length // chunks if chunks else 0)
        goals = ids.split(length // chunks, dim=1) if chunks else [ids]
        loss = sum(
            F.cross_entropy(part.float().flatten(0, 1), goal.flatten(), reduction="sum")
            for part, goal in zip(parts, goals, strict=True)
        )
        del parts
        (loss / ids.numel()).backward()
        if not in_backward:
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()


def sharded(model: str, batch: int, length: int) -> None:
    """FSDP2 with selective checkpoints (every second product is kept), as torchtitan's ``train.py``."""
    from torch.distributed import init_process_group
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    init_process_group("nccl")
    torch.backends.cuda.enable_cudnn_sdp(False)
    shape, ops = MODELS[model], torch.ops.aten
    kept = {
        ops._scaled_dot_product_efficient_attention.default,
        ops._scaled_dot_product_flash_attention.default,
    }

    def contexts() -> tuple:
        seen = {True: 0, False: 0}

        def policy(ctx: object, func: object, *_: object, **__: object) -> CheckpointPolicy:
            if func == ops.mm.default:
                seen[ctx.is_recompute] += 1
            saves = func in kept or (func == ops.mm.default and seen[ctx.is_recompute] % 2)
            return CheckpointPolicy.MUST_SAVE if saves else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    with torch.device("meta"):
        net = Decoder(shape)
    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for at, block in enumerate(net.blocks):
        net.blocks[at] = checkpoint_wrapper(block, context_fn=contexts, preserve_rng_state=False)
        fully_shard(net.blocks[at], mp_policy=mixed, reshard_after_forward=at < len(net.blocks) - 1)
    fully_shard(net, mp_policy=mixed)
    net.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4)
    for _ in range(3):
        ids = tokens(shape.vocabulary, batch, length)
        optimizer.zero_grad()
        logits = net(ids)[0]
        loss = F.cross_entropy(logits.flatten(0, 1).float(), ids.flatten())
        del logits
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0, foreach=True)
        optimizer.step()


def vision(
    model: str,
    batch: int,
    *,
    classes: int = 10,
    dtype: str = "",
    autocast: str = "",
    times: int = 1,
    checkpoints: bool = False,
    fused: bool = False,
    adam: bool = True,
    clears: str = "after the forward",
) -> None:
    """A vision transformer, 224 pixels, Adam or AdamW."""
    torch.set_float32_matmul_precision("high")
    net = Vision(classes=classes, **VISION[model])
    own = getattr(torch, dtype) if dtype else torch.float32
    net.to(own).cuda()
    net.checkpoints = checkpoints
    kind = torch.optim.Adam if adam else torch.optim.AdamW
    optimizer = kind(net.parameters(), lr=5e-5, fused=fused or None)
    scaler = torch.amp.GradScaler("cuda", enabled=autocast == "float16")
    for _ in range(3):
        for at in range(times):
            pictures, labels = (
                torch.randn(batch, 3, 224, 224, dtype=own).cuda(),
                torch.zeros(batch, dtype=torch.long).cuda(),
            )
            with torch.autocast("cuda", getattr(torch, autocast or "bfloat16"), enabled=bool(autocast)):
                loss = F.cross_entropy(net(pictures), labels) / times
            if not at and clears == "after the forward":
                optimizer.zero_grad()
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if clears == "after the step":
            optimizer.zero_grad()


def zero(*, is_sharded: bool, steps: bool) -> None:
    """Twenty linear layers of 2,000 in DDP on two ranks, Adam or ZeRO-1, one step; without ``steps`` the peak before it."""
    from torch.distributed import init_process_group
    from torch.distributed.optim import ZeroRedundancyOptimizer

    init_process_group("gloo")
    net = nn.parallel.DistributedDataParallel(
        nn.Sequential(*[nn.Linear(2000, 2000).to(0) for _ in range(20)]), device_ids=[0]
    )
    if is_sharded:
        optimizer = ZeroRedundancyOptimizer(
            net.parameters(), optimizer_class=torch.optim.Adam, lr=0.01, foreach=False
        )
    else:
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01, foreach=False)
    out, goal = net(torch.randn(20, 2000).to(0)), torch.randn(20, 2000).to(0)
    F.mse_loss(out, goal).backward()
    if steps:
        optimizer.step()


def adapted(net: nn.Module, names: tuple[str, ...]) -> nn.Module:
    """``net`` frozen, with low ranks beside the linear layers of these names, as PEFT's LoRA."""
    for p in net.parameters():
        p.requires_grad = False
    for module in list(net.modules()):
        for name, child in list(module.named_children()):
            if name in names:
                setattr(module, name, WithLow(child, 0.1))
    return net


def seq2seq(
    batch: int,
    length: int,
    *,
    low: bool = False,
    foreach: bool | None = None,
    keeps_gradients: bool = False,
    model: str = "t0-3b",
) -> None:
    """T0-3B or mT0-xxl in float32, seven tokens to predict."""
    import transformers

    sizes = {"t0-3b": (2048, 5120, 32, 32128), "mt0-xxl": (4096, 10240, 64, 250112)}[model]
    config = transformers.T5Config(
        d_kv=64, num_layers=24, feed_forward_proj="gated-gelu", decoder_start_token_id=0
    )
    config.d_model, config.d_ff, config.num_heads, config.vocab_size = sizes
    config._attn_implementation = "eager"
    net = transformers.T5ForConditionalGeneration(config)
    net.lm_head = nn.Linear(
        config.d_model, config.vocab_size, bias=False
    )  # transformers 5 ties it all the same
    net = (adapted(net, ("q", "v")) if low else net).cuda().train()
    chosen = [p for p in net.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(chosen, lr=3e-3, foreach=foreach)
    for _ in range(3):
        ids = tokens(32000, batch, length)
        net(
            input_ids=ids, attention_mask=torch.ones_like(ids), labels=tokens(32000, batch, 7)
        ).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=not keeps_gradients)


def bloom(batch: int, length: int, *, low: bool = True) -> None:
    """bloomz-7b1 in float32, all weights or LoRA of its joint projections."""
    import transformers

    config = transformers.BloomConfig(
        vocab_size=250880, hidden_size=4096, n_layer=30, n_head=32, use_cache=False
    )
    config._attn_implementation = "eager"
    with torch.device("cuda"):
        net = transformers.BloomForCausalLM(config).train()
        net = adapted(net, ("query_key_value",)) if low else net
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=3e-3)
    for _ in range(3):
        ids = tokens(250000, batch, length)
        net(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def lomo(optimizer: str, *, checkpoints: bool = False) -> None:
    """LLaMA-7B in half precision, 8 x 512 tokens: masters in float32 for AdamW and SGD, none where backward updates (LOMO)."""
    import transformers

    config = transformers.LlamaConfig(intermediate_size=11008, use_cache=False)
    config._attn_implementation = "eager"
    torch.set_default_dtype(torch.float16)
    with torch.device("cuda"):
        net = transformers.LlamaForCausalLM(config).train()
    torch.set_default_dtype(torch.float32)
    if checkpoints:
        net.gradient_checkpointing_enable({"use_reentrant": False})
    chosen, masters = list(net.parameters()), []
    if optimizer != "lomo":
        masters = [p.detach().float() for p in chosen]
    else:
        for p in chosen:
            p.register_post_accumulate_grad_hook(descended)
    states = [torch.zeros_like(p) for p in masters * 2] if optimizer == "adamw" else []
    for _ in range(2):
        ids = tokens(32000, 8, 512)
        net(input_ids=ids, labels=ids).loss.backward()
        for p in chosen if masters else []:
            p.grad = None
    del states


def gpt2_xl(batch: int, length: int) -> None:
    """GPT-2 XL in float32 with AdamW of 2022, on one card."""
    import transformers

    net = (
        transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=1600, n_layer=48, n_head=25))
        .cuda()
        .train()
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-5, foreach=False)
    for _ in range(3):
        ids = tokens(50257, batch, length)
        net(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


PROGRAMS = {
    f.__name__: f for f in (bert, low_rank, full, sharded, vision, zero, seq2seq, bloom, lomo, gpt2_xl)
}


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    PROGRAMS[options.pop("program")](**options)
