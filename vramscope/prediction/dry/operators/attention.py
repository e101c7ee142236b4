"""Scaled dot product attention: which kernel CUDA would choose, and what each takes and keeps.

The choice is that of ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``: flash attention for half
precision without a mask, the memory-efficient kernel for the rest that has a fitting width, else plain
products.
"""

import functools
import math
import os
from typing import Any

import torch
from torch.nn.functional import pad

from vramscope.prediction.cards import Hardware
from vramscope.prediction.dry import versions
from vramscope.prediction.dry.doubts import Certainty
from vramscope.prediction.dry.operators import NOTHING, Call, OwnMemory
from vramscope.prediction.dry.operators._reduce import n_bytes
from vramscope.prediction.dry.state import state

_CUDNN_BYTES = 256
_HALF = (torch.float16, torch.bfloat16)


def _is_flash(query: Any, key: Any, value: Any, mask: Any, is_causal: bool, card: Hardware) -> bool:
    width = query.size(-1)
    is_training = torch.is_grad_enabled() and any(one.requires_grad for one in (query, key, value))
    is_small = card.capability in ((8, 6), (8, 9)) or card.capability[0] == 12
    return (
        torch.backends.cuda.flash_sdp_enabled()
        and query.dim() == key.dim() == value.dim() == 4
        and mask is None
        and width == key.size(-1) == value.size(-1) <= 256
        and card.capability >= (8, 0)
        and not (is_small and is_training and width > 192)
        and not (is_causal and query.size(-2) != key.size(-2))
        and query.dtype in _HALF
        and _is_dense(query, key, value)
    )


def _is_efficient(query: Any, key: Any, value: Any, card: Hardware) -> bool:
    width = query.size(-1)
    is_half = query.dtype in _HALF
    aligned = max(
        4 if card.capability[0] >= 8 else 1,
        (128 // (16 if is_half else 32)) if card.capability[0] >= 8 or is_half else 1,
    )
    kinds = (
        (torch.float16, torch.float32, torch.bfloat16)
        if card.capability[0] >= 8
        else (torch.float16, torch.float32)
    )
    return (
        torch.backends.cuda.mem_efficient_sdp_enabled()
        and query.dim() == key.dim() == value.dim() == 4
        and width == key.size(-1)
        and (query.size(1) == key.size(1) or versions.has_new_efficient_attention())
        and width % aligned == 0
        and value.size(-1) % aligned == 0
        and query.dtype in kinds
        and _is_dense(query, key, value)
    )


def _is_dense(query: Any, key: Any, value: Any) -> bool:
    """Same batch, fitting heads, no empty sequence, and the last dimension in one piece."""
    fits = query.size(0) == key.size(0) == value.size(0) and key.size(1) == value.size(1)
    return (
        fits
        and query.size(1) % max(key.size(1), 1) == 0
        and 0 not in (query.size(-2), key.size(-2))
        and all(one.stride(-1) == 1 or one.size(-1) == 1 for one in (query, key, value))
    )


def _prefers_cudnn(parts: tuple[Any, Any, Any], is_causal: bool, card: Hardware) -> bool:
    """On Hopper and the first Blackwell, cuDNN's own kernel comes first."""
    query, key, _ = parts
    return (
        torch.backends.cudnn.enabled
        and torch.backends.cuda.cudnn_sdp_enabled()
        and os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") != "1"
        and card.capability in ((9, 0), (10, 0))
        and query.dim() == 4
        and query.dtype in _HALF
        and all(
            one.size(-1) % 8 == 0 and one.size(-1) <= (256 if card.capability[0] == 9 else 128)
            for one in parts
        )
        and 1 not in (query.size(-2), key.size(-2))
        and not (is_causal and query.size(-2) != key.size(-2))
        and _is_dense(*parts)
    )


def attention(  # noqa: PLR0913 -- the schema's
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """``aten::scaled_dot_product_attention`` as it chooses on the card."""
    if query.dim() == key.dim() == value.dim() == 3 and versions.has_new_efficient_attention():
        one, two, three = (part.unsqueeze(0) for part in (query, key, value))
        mask = attn_mask if attn_mask is None or attn_mask.dim() < 3 else attn_mask.unsqueeze(0)
        out = attention(one, two, three, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        return out.squeeze(0)
    card = state().so_far.card
    is_apart = attn_mask is not None and attn_mask.stride(-1) != 1
    is_fusable = not is_apart and (enable_gqa or query.dim() != 4 or query.size(1) == key.size(1))
    # cuDNN's kernel has no gradient of a mask.
    is_learned = attn_mask is not None and attn_mask.requires_grad
    if is_fusable and not is_learned and _prefers_cudnn((query, key, value), is_causal, card):
        return _by_cudnn((query, key, value), _additive(attn_mask, query.dtype), dropout_p, is_causal, scale)
    if is_fusable and _is_flash(query, key, value, attn_mask, is_causal, card):
        return _flash((query, key, value), dropout_p, is_causal, scale)
    mask = _additive(attn_mask, query.dtype)
    if is_fusable and _is_efficient(query, key, value, card):
        return _efficient((query, key, value), mask, dropout_p, is_causal, scale)
    return _plain(query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)[0]


def _by_cudnn(parts: tuple[Any, Any, Any], mask: Any, dropout_p: float, is_causal: bool, scale: Any) -> Any:
    why = "what cuDNN's kernel takes was measured on an H100 with cuDNN 9.19; other versions may take more"
    state().doubts.add(Certainty.ESTIMATE, "aten.scaled_dot_product_attention", why)
    keeps = torch.is_grad_enabled() and any(one.requires_grad for one in parts)
    return torch.ops.aten._scaled_dot_product_cudnn_attention(
        *parts, mask, keeps, dropout_p, is_causal, False, scale=scale
    )[0]


def _flash(parts: tuple[Any, Any, Any], dropout_p: float, is_causal: bool, scale: float | None) -> Any:
    query, key, value = parts
    width = query.size(-1)
    missing = -width % 8
    if missing:
        query, key, value = (pad(one, (0, missing)) for one in (query, key, value))
    exact = 1 / math.sqrt(width) if scale is None else scale
    out = torch.ops.aten._scaled_dot_product_flash_attention(
        query, key, value, dropout_p, is_causal, False, scale=exact
    )[0]
    return torch.ops.aten.slice(out, -1, 0, width, 1) if missing else out


def _additive(mask: Any, dtype: torch.dtype) -> Any:
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.where(mask, 0.0, torch.scalar_tensor(-math.inf, dtype=dtype, device=mask.device))


def _efficient(parts: tuple[Any, Any, Any], mask: Any, dropout_p: float, is_causal: bool, scale: Any) -> Any:
    query, key, value = parts
    if mask is not None:
        missing = -mask.size(-1) % 8
        if missing:
            mask = torch.ops.aten.slice(pad(mask, (0, missing)), -1, 0, mask.size(-1), 1)
        mask = mask.expand(query.size(0), query.size(1), query.size(2), key.size(2))
        if any(mask.stride(i) % 8 for i in (0, 1, 2)):
            mask = mask.contiguous()
    keeps = torch.is_grad_enabled() and any(one.requires_grad for one in (query, key, value))
    return torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, keeps, dropout_p, is_causal, scale=scale
    )[0]


def _repeated(query: Any, key: Any, value: Any) -> tuple[Any, Any]:
    """Keys and values that groups of queries share, once for each query."""
    times = query.size(-3) // key.size(-3)
    return (
        (key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)) if times > 1 else (key, value)
    )


def _plain(  # noqa: PLR0913, PLR0917 -- the schema's
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    dropout_mask: Any = None,  # noqa: ARG001
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """``aten::_scaled_dot_product_attention_math``: for a subclass of tensors it would add out of place."""
    dtype = query.dtype
    if dtype in _HALF and not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed():
        query, key, value = query.float(), key.float(), value.float()
    factor = math.sqrt(1 / math.sqrt(query.size(-1)) if scale is None else abs(scale))
    query = query * factor
    if is_causal:
        ones = functools.partial(torch.ones, dtype=torch.bool, device=query.device)
        attn_mask = _additive(ones(query.size(-2), key.size(-2)).tril(), query.dtype)  # the truths are gone
    if enable_gqa:
        key, value = _repeated(query, key, value)
    products = torch.matmul(query, key.transpose(-2, -1) * factor)
    if attn_mask is not None:
        products.add_(attn_mask)
    products = torch.ops.aten._safe_softmax(products, -1)
    if dropout_p > 0:
        products = torch.dropout(products, dropout_p, True)
    return torch.matmul(products, value).to(dtype), products.to(dtype)


def _rounded(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _flash_width(width: int) -> int:
    return _rounded(width, 32 if width <= 128 else 64)


def _flash_forward(call: Call) -> OwnMemory:
    """Short inputs are cut along the keys, and each part has its result in float32."""
    query, key = call.args[0], call.args[1]
    batch, heads, length, width = query.shape
    if call.given("dropout_p", 0.0) > 0:
        return OwnMemory(after=(16,))
    block = 256 if width <= 64 else 128 if width <= 128 else 64
    parts = _splits(
        batch * heads * -(-length // 64), 2 * call.so_far.card.n_multiprocessors, -(-key.size(-2) // block)
    )
    if parts <= 1:
        return NOTHING
    each = 4 * parts * batch * heads * length
    between = (("taken", each), ("taken", each * _flash_width(width)))
    return OwnMemory(plan=(("made", 0), ("made", 1), *between, ("made", 6), ("made", 7)))


def _splits(n_blocks: int, n_multiprocessors: int, n_key_blocks: int) -> int:
    """The least number of parts that is almost as efficient as the best."""
    if n_blocks >= 0.8 * n_multiprocessors:
        return 1
    most = min(128, n_multiprocessors, n_key_blocks)
    found: dict[int, float] = {}
    for parts in range(1, most + 1):
        if parts == 1 or -(-n_key_blocks // parts) != -(-n_key_blocks // (parts - 1)):
            waves = n_blocks * parts / n_multiprocessors
            found[parts] = waves / math.ceil(waves)
    best = max(found.values(), default=0.0)
    return next((parts for parts, good in found.items() if good >= 0.85 * best), 1)


def _flash_backward(call: Call) -> OwnMemory:
    """Gradients of the queries are summed in float32, and grouped keys have one for each query."""
    grad, query, key, out = (call.args[i] for i in (0, 1, 2, 4))
    batch, heads, length, width = query.shape
    rounded = _rounded(length, 128)
    before = [n_bytes(one) for one in (grad, out) if not _is_by_length(one)]
    after = [4 * batch * heads * rounded, 4 * batch * rounded * heads * _flash_width(width)]
    if key.size(1) != heads:
        after += [batch * key.size(2) * heads * width * key.element_size()] * 2
    return OwnMemory(before=tuple(before), after=tuple(after))


def _cudnn_forward(call: Call) -> OwnMemory:
    """A small workspace; sums of exponents only for a backward, a seed and an offset in any case."""
    return OwnMemory(
        order=(0, 1, 6, 7) if call.args[4] else (0, 6, 7), after=(_CUDNN_BYTES,), perhaps=_perhaps(call)
    )


def _cudnn_backward(call: Call) -> OwnMemory:
    """Gradients of the queries and a number a row in float32; grouped keys have one for each query."""
    query, key, value = call.args[1:4]
    after = [4 * query.numel(), 4 * query.numel() // query.size(-1), _CUDNN_BYTES]
    if key.size(1) != query.size(1):
        after += [query.size(1) // key.size(1) * n_bytes(one) for one in (key, value)]
    return OwnMemory(after=tuple(after), perhaps=_perhaps(call))


def _perhaps(call: Call) -> int:
    """What another version of cuDNN may take beyond: all gradients in float32 twice."""
    query, key = call.args[1:3] if "backward" in call.func._schema.name else call.args[:2]
    return int(8 * (query.numel() + 2 * key.numel()))


def _efficient_forward(call: Call) -> OwnMemory:
    """Wide heads in half precision are summed in float32; a seed that is not used may lie on the card."""
    query, value = call.args[0], call.args[2]
    has_seeds = versions.has_new_efficient_attention() and not call.given("dropout_p", 0.0)
    order = (2, 3, 0, 1) if has_seeds else (0, 1)
    if query.dtype == torch.float32 or value.size(-1) <= 128:
        return OwnMemory(order=order)
    return OwnMemory(order=order, after=(4 * query.numel() // query.size(-1) * value.size(-1),))


def _is_by_length(tensor: Any) -> bool:
    """Whether batch, length, heads and width lie in one piece in this order."""
    batch, heads, length, width = tensor.shape
    expected = 1
    for size, stride in zip(
        (width, heads, length, batch), (tensor.stride(each) for each in (3, 1, 2, 0)), strict=True
    ):
        if size != 1 and stride != expected:
            return tensor.numel() == 0
        expected *= size
    return True


def _efficient_backward(call: Call) -> OwnMemory:
    """One number a row, computed as tensors in float32, and a workspace for the gradient of the queries.

    Keys that a group of queries shares have a gradient for each query, which is summed at the end.
    """
    grad, query, key, value = call.args[:4]
    copies = [("taken", n_bytes(grad))] if not _is_by_length(grad) else []
    rows, times = 4 * query.numel() // query.size(-1), query.size(1) // key.size(1)
    shared = [("taken", times * n_bytes(one)) for one in (key, value) if times > 1]
    made = [("made", 0), ("made", 1), ("made", 2), *([("made", 3)] if call.out[3] is not None else [])]
    if query.dtype == torch.float32:
        product = n_bytes(grad)
        sums = [("taken", product), ("taken", rows), ("taken", rows), ("given", rows), ("given", product)]
    else:
        sums = [("taken", rows)]
    workspace = query.size(0) * query.size(1) * _workspace(query, key)
    return OwnMemory(plan=(*copies, *made, *shared, *sums, ("taken", workspace)))


def _workspace(query: Any, key: Any) -> int:
    """Bytes of one head, in the tiles of the kernel that is chosen on Ampere and later."""
    length, width = query.shape[-2:]
    is_half = query.dtype in _HALF
    if width <= 64:
        tile, step = 64, 64
    elif width <= 128:
        tile, step = (128, 128) if is_half else (64, 128)
    else:
        tile, step = 128, 64
    numbers = -(-length // tile) * -(-width // step) * (4 + tile * step)
    if width > 128 and is_half:
        heads, keys = query.size(0) * query.size(1), key.size(-2)
        parts = 1 if heads >= 256 and keys <= 2 * step else min(-(-keys // step), max(200 // heads, 1))
        numbers += 2 * parts * step * _rounded(width, tile)
    return 4 * _rounded(numbers, 4)


def _safe(call: Call) -> OwnMemory:
    """Which products are masked, in which rows all are, and a zero for those."""
    products = call.args[0]
    return OwnMemory(after=(products.numel(), products.numel() // products.size(-1), products.element_size()))


REPLACEMENTS = {"scaled_dot_product_attention": attention, "_scaled_dot_product_attention_math": _plain}


def fused_bytes(module: Any, *args: Any, **kwargs: Any) -> int:
    """The most that an encoder's layer, or its attention alone, may take as one operator on CUDA.

    ``native/transformers/transformer.cpp`` and ``cuda/attention.cu``: every result between as if none were
    freed, and those of a nested tensor, which is no larger than the padded one.
    """
    given = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
    attention, wide = getattr(module, "self_attn", module), getattr(module, "linear1", None)
    source, key = given[0], given[0] if wide is not None else given[min(1, len(given) - 1)]
    length = key.size(1 if attention.batch_first and key.dim() == 3 else 0)
    scores = source.numel() // source.size(-1) * attention.num_heads * length * source.element_size()
    hidden = 0 if wide is None else 2 * n_bytes(source) * wide.out_features // source.size(-1)
    return 18 * n_bytes(source) + 6 * n_bytes(key) + hidden + 3 * scores
