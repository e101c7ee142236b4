"""Calls of operators whose own memory counts, each with the peak it causes: for real, or predicted."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 -- torch's own name for it


def _t(*shape, dtype=torch.float32):
    return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=dtype.is_floating_point)


def _half(*shape):
    return _t(*shape, dtype=torch.float16)


def _i(high, *shape):
    return torch.randint(0, high, shape, device="cuda")


def _list():
    return [_t(1000 * (at + 1)).detach() for at in range(7)]


def _back(loss):
    (loss if loss.dim() == 0 else loss.float().sum()).backward()


def _layer(layer, *shape, dtype=torch.float32):
    return _back(layer.to("cuda", dtype)(_t(*shape, dtype=dtype)))


SAMPLES = {
    "sum to one number": lambda: _back(_t(4096, 4096)),
    "sum over rows": lambda: _back(_t(100_001, 129).sum(0)),
    "sum over the inner of three": lambda: _t(64, 1024, 300).sum((0, 1)),
    "sum of half precision": lambda: _back(_t(1 << 22, dtype=torch.bfloat16).sum()),
    "sum of truths": lambda: (_t(2048, 2048) > 0).sum(0),
    "variance": lambda: _t(16, 256, 56, 56).var((0, 2, 3)),
    "place of the largest": lambda: _t(7, 200_000).argmax(1),
    "flash attention": lambda: _back(
        F.scaled_dot_product_attention(*(_t(2, 4, 512, 64, dtype=torch.bfloat16) for _ in range(3)))
    ),
    "flash attention of few heads": lambda: F.scaled_dot_product_attention(
        *(_t(1, 2, 2048, 128, dtype=torch.float16) for _ in range(3))
    ),
    "attention in float32": lambda: _back(
        F.scaled_dot_product_attention(*(_t(2, 4, 256, 96) for _ in range(3)))
    ),
    "attention of wide heads in half": lambda: _back(
        F.scaled_dot_product_attention(
            *(_t(2, 4, 256, 160, dtype=torch.bfloat16) for _ in range(3)),
            attn_mask=torch.zeros(256, 256, device="cuda", dtype=torch.bfloat16),
        )
    ),
    "attention by plain products": lambda: _back(
        F.scaled_dot_product_attention(*(_t(2, 4, 128, 63) for _ in range(3)), is_causal=True)
    ),
    "labels in time": lambda: _back(
        F.ctc_loss(
            _t(300, 16, 500).log_softmax(-1),
            _i(499, 16, 30) + 1,
            torch.full((16,), 300),
            torch.arange(15, 31),
        )
    ),
    "margins of classes": lambda: _back(F.multi_margin_loss(_t(5000, 64), _i(64, 5000))),
    "embedding": lambda: _back(F.embedding(_i(1000, 5000, 4), _t(1000, 64))),
    "bags": lambda: _back(F.embedding_bag(_i(1000, 640, 10), _t(1000, 32), mode="mean")),
    "indices": lambda: _back(_t(4, 256, 768)[_i(4, 5000), _i(256, 5000)]),
    "indices of a middle dimension": lambda: _back(_t(64, 250, 3)[:, _i(250, 5000)]),
    "indices apart": lambda: _back(_t(16, 30, 16)[_i(16, 5000), :, _i(16, 5000)]),
    "sums by index": lambda: torch.zeros(90, 64, device="cuda").scatter_add_(
        0, _i(90, 5000, 64), _t(5000, 64).detach()
    ),
    "largest by index": lambda: torch.zeros(90, 64, device="cuda").scatter_reduce(
        0, _i(90, 5000, 64), _t(5000, 64).detach(), "amax"
    ),
    "a small permutation": lambda: torch.randperm(777, device="cuda"),
    "truths together": lambda: (
        ((_t(1000, 700) > 0) | (_t(1000, 700) < 1)) & ~(_t(1000, 700) == 2)
        ^ torch.logical_xor(_t(1000, 700), _t(1000, 700))
    ),
    "mean squared error": lambda: _back(F.mse_loss(_t(512, 1000), torch.rand(512, 1000, device="cuda"))),
    "cross entropy": lambda: _back(F.cross_entropy(_t(512, 1000), _i(1000, 512), label_smoothing=0.1)),
    "binary cross entropy": lambda: _back(
        F.binary_cross_entropy_with_logits(_t(512, 1000), torch.rand(512, 1000, device="cuda"))
    ),
    "layers": lambda: _back(F.layer_norm(_t(8, 256, 768), (768,), _t(768), _t(768)).transpose(0, 1)),
    "root mean square": lambda: _back(F.rms_norm(_t(8, 256, 768), (768,), _t(768))),
    "groups": lambda: _back(F.group_norm(_t(4, 64, 16, 16), 8, _t(64), _t(64))),
    "groups of single points": lambda: _back(F.group_norm(_t(400, 64), 8, _t(64), _t(64))),
    "groups of rows that lie apart": lambda: _back(
        F.group_norm(_t(4, 100, 64).transpose(1, 2), 8, _t(64), _t(64)).square()
    ),
    "normalized weights": lambda: _back(torch._weight_norm(_t(512, 300), _t(512, 1), 0)),
    "softmax": lambda: _back(_t(64, 1000).softmax(-1).square()),
    "softmax from float16 to float32": lambda: _back(_half(64, 1000).softmax(-1, dtype=torch.float32)),
    "log of softmax from float16 to float32": lambda: _back(
        _half(64, 1000).log_softmax(-1, dtype=torch.float32)
    ),
    "log of a sum": lambda: _back(_t(64, 1000).logsumexp(-1)),
    "dropout": lambda: _back(F.dropout(_t(1000, 1000), 0.1)),
    "sorting": lambda: _back(_t(64, 1000).sort(-1)[0]),
    "columns": lambda: _back(F.unfold(_t(4, 8, 32, 32), 3)),
    "a product": lambda: _back(_t(300, 200) @ _t(200, 500)),
    "a product with a bias": lambda: _layer(nn.Linear(200, 500), 300, 200),
    "a product with a bias in half precision": lambda: _layer(
        nn.Linear(200, 500), 300, 200, dtype=torch.bfloat16
    ),
    "a product with a bias to one column": lambda: _layer(nn.Linear(200, 1), 300, 200),
    "a product with a bias of a single row": lambda: _layer(nn.Linear(200, 500), 1, 200),
    "a product with a matrix added": lambda: _back(torch.addmm(_t(300, 500), _t(300, 200), _t(200, 500))),
    "a product with half of a bias": lambda: _back(
        torch.addmm(_t(500), _t(300, 200), _t(200, 500), beta=0.5)
    ),
    "products of a batch": lambda: _back(torch.baddbmm(_t(4, 30, 50), _t(4, 30, 20), _t(4, 20, 50))),
    "a product with a vector": lambda: _back(_t(300, 200) @ _t(200)),
    "a product of vectors": lambda: _back(_t(300_000) @ _t(300_000)),
    "an outer product added": lambda: _back(torch.addr(_t(300, 200), _t(300), _t(200))),
    "an empty product": lambda: _t(0, 200) @ _t(200, 500),
    "attention with shared keys": lambda: _back(
        F.scaled_dot_product_attention(
            _t(2, 8, 256, 64), _t(2, 2, 256, 64), _t(2, 2, 256, 64), is_causal=True, enable_gqa=True
        )
    ),
    "attention with a mask and shared keys": lambda: _back(
        F.scaled_dot_product_attention(
            _t(2, 6, 200, 96),
            _t(2, 3, 200, 96),
            _t(2, 3, 200, 96),
            attn_mask=torch.zeros(2, 1, 200, 200, device="cuda", dtype=torch.bool),
            enable_gqa=True,
        )
    ),
    "attention of three dimensions": lambda: _back(
        F.scaled_dot_product_attention(
            *(_t(6, 200, 64) for _ in range(3)), attn_mask=_t(6, 200, 200).detach()
        )
    ),
    "attention of three dimensions in half precision": lambda: _back(
        F.scaled_dot_product_attention(*(_half(6, 200, 64) for _ in range(3)))
    ),
    "a convolution": lambda: _layer(nn.Conv2d(16, 32, 3, padding=1), 4, 16, 64, 64),
    "a convolution of pictures": lambda: (
        F.conv2d(torch.rand(8, 3, 128, 128, device="cuda"), _t(32, 3, 3, 3), _t(32), padding=1)
        .sum()
        .backward()
    ),
    "a convolution with strides": lambda: _layer(nn.Conv2d(16, 32, 3, stride=2, bias=False), 4, 16, 64, 64),
    "a convolution of single points": lambda: _layer(nn.Conv2d(16, 32, 1), 4, 16, 64, 64),
    "a convolution of single points of data": lambda: (
        F.conv2d(torch.rand(8, 3, 128, 128, device="cuda"), _t(32, 3, 1, 1)).sum().backward()
    ),
    "a convolution of a line": lambda: _layer(nn.Conv1d(16, 32, 5), 4, 16, 3000),
    "a convolution of a space": lambda: _layer(nn.Conv3d(8, 16, 3, padding=1), 2, 8, 16, 16, 16),
    "a convolution with gaps": lambda: _layer(nn.Conv2d(16, 32, 3, dilation=2), 4, 16, 64, 64),
    "a convolution by depth": lambda: _layer(nn.Conv2d(64, 64, 3, padding=1, groups=64), 16, 64, 64, 64),
    "a transposed convolution": lambda: _layer(nn.ConvTranspose2d(16, 32, 2, stride=2), 4, 16, 64, 64),
    "a convolution in half precision": lambda: _layer(
        nn.Conv2d(16, 32, 3, padding=1), 4, 16, 64, 64, dtype=torch.float16
    ),
    "a convolution of many pictures": lambda: _layer(nn.Conv2d(8, 8, 3, padding=1), 64, 8, 128, 128),
    "lists": lambda: [
        each(_list(), *others)
        for each, *others in (
            (torch._foreach_exp,),
            (torch._foreach_sigmoid,),
            (torch._foreach_lerp, _list(), 0.3),
            (torch._foreach_div, _list()),
            (torch._foreach_maximum, _list()),
            (torch._foreach_minimum_, _list()),
            (torch._foreach_addcdiv, _list(), _list(), 0.1),
            (torch._foreach_zero_,),
        )
    ],
    "functions of single values": lambda: [
        _back(function(_t(512, 1000))) for function in (F.mish, F.hardshrink, lambda x: torch.logit(x, 1e-3))
    ],
    "norms of a list": lambda: torch.nn.utils.get_total_norm([_t(1000, 1000).detach() for _ in range(3)]),
}


# Rows that meet at the same index are sorted by cub, whose own memory is known to a few blocks.
NEARLY = dict.fromkeys(("indices", "indices of a middle dimension", "indices apart"), 4096)


def _peak(sample):
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = sample()
    del result
    return torch.cuda.max_memory_allocated() - before


def peaks():
    """Bytes above what was there, by name."""
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    weight = torch.ones(8, 8, device="cuda", requires_grad=True)
    (weight @ weight).sum().backward()  # the workspaces
    return {name: _peak(sample) for name, sample in SAMPLES.items()}


def predicted_peaks():
    """The same, dry."""
    from vramscope.prediction import predict

    found = {}
    was_on = torch.backends.cudnn.enabled, torch.backends.cuda.cudnn_sdp_enabled()
    try:
        predict(lambda: found.update(peaks()), steps=None)
    finally:
        torch.backends.cudnn.enabled = was_on[0]
        torch.backends.cuda.enable_cudnn_sdp(was_on[1])
    return found
