"""Convolutions: cuDNN chooses its memory at run time; torch's own kernels, used without it, take columns.

A column is what one place of the output is computed from, of one sample: the columns are multiplied with the
weights by cuBLAS, sample by sample. Seen on the stand-in, which has no cuDNN, torch 2.13 to 2.15.

cuDNN's workspaces have no limit: one of 27 GiB was reported (pytorch/pytorch issue 166790). On an H100 with
cuDNN 9.19 half of 1,093 convolutions took as much as their tensors have, one 490 times as much, and
CUDNN_CONV_WSCAP_DBG changed none of them.
"""

from math import prod
from typing import Any, NamedTuple

import torch

from vramscope.prediction.dry.doubts import Certainty
from vramscope.prediction.dry.operators import Call, OwnMemory
from vramscope.prediction.dry.operators._reduce import copy_of, n_bytes, passing, taken
from vramscope.prediction.dry.operators.matmul import kept_by_product, taken_by_product
from vramscope.prediction.dry.operators.reductions import sum_buffers

_CUDNN = (Certainty.CANNOT_TELL, "cuDNN chooses its algorithm and workspace at run time")
_RANGE = "what torch's own kernel takes for this layout is known within a range"

_Events = tuple[tuple[str, Any], ...]


class _Native(NamedTuple):
    """Which of torch's own kernels a convolution runs in, and its sizes."""

    kind: str
    """``columns``, ``dilated`` (in any number of dimensions), ``transposed`` or ``depthwise``"""
    columns_bytes: int
    is_direct: bool
    """A forward without columns: each place of the output is computed from one of the input."""
    is_usual: bool
    """The input and weights lie in one piece, and channels are in one group."""


def _kernel(source: Any, weight: Any, place: Any, settings: tuple[Any, ...]) -> _Native:
    """The kernel for these settings, from the stride on as in the schema; *place* has the output's sizes."""
    stride, padding, dilation, is_transposed, _, groups = settings
    size = weight.shape[2:]
    is_depthwise = not is_transposed and 1 < groups == source.size(1)
    if is_transposed:
        kind, each = "transposed", weight.size(1) * prod(source.shape[2:])
    else:
        is_wide = any(one != 1 for one in dilation) or len(size) == 3
        kind = "depthwise" if is_depthwise and len(size) != 1 else "dilated" if is_wide else "columns"
        each = source.size(1) * prod(place.shape[2:])
    is_direct = kind == "columns" and set(size) | set(stride) == {1} and set(padding) == {0}
    is_usual = (
        source.is_contiguous()
        and weight.is_contiguous()
        and (groups == 1 or kind == "depthwise")
        and not (kind == "transposed" and len(size) == 3)
    )
    return _Native(kind, each * prod(size) * source.element_size(), is_direct, is_usual)


def _forward(call: Call) -> OwnMemory:
    if torch.backends.cudnn.enabled:
        return OwnMemory(doubt=_CUDNN)
    source, weight = call.args[:2]
    kernel = _kernel(source, weight, call.out, call.args[3:9])
    if kernel.kind == "depthwise":
        return OwnMemory() if kernel.is_usual else _within_a_range(call, kernel)
    columns = () if kernel.is_direct else taken(kernel.columns_bytes)
    if kernel.kind == "transposed":
        columns += taken(call.out[0, 0].numel() * source.element_size())
    if not kernel.is_usual:
        return _within_a_range(call, kernel)
    return OwnMemory(
        plan=(("made", 0), *columns, *taken_by_product(call.so_far)), kept=kept_by_product(call.so_far)
    )


def _backward(call: Call) -> OwnMemory:
    if torch.backends.cudnn.enabled:
        return OwnMemory(doubt=_CUDNN)
    grad, source, weight = call.args[:3]
    kernel = _kernel(source, weight, grad, call.args[4:10])
    if not kernel.is_usual:
        return _within_a_range(call, kernel)
    copied = copy_of(grad)
    if kernel.kind == "depthwise":
        there = (*taken(*copied), *_made(call, 1), *_made(call, 0), *(("given", one) for one in copied))
        return OwnMemory(plan=(*there, *_bias(call, grad)))
    plan = {"columns": _by_columns, "dilated": _by_dilated, "transposed": _by_transposed}[kernel.kind]
    return OwnMemory(plan=(*taken(*copied), *plan(call, kernel)), kept=kept_by_product(call.so_far))


def _by_columns(call: Call, kernel: _Native) -> _Events:
    columns, product = taken(kernel.columns_bytes), taken_by_product(call.so_far)
    weights = (*_bias(call, _in_one_piece(call.args[0])), *_made(call, 1))
    if call.out[0] is None:
        return (*weights, *columns, *product)
    return (("made", 0), *columns, *product, *weights, *product)


def _by_dilated(call: Call, kernel: _Native) -> _Events:
    """The sum of a sample for the bias is a tensor of its own."""
    made = (*_made(call, 0), *_made(call, 1), *_made(call, 2))
    bias = () if call.out[2] is None else passing(n_bytes(call.out[2]))
    return (*made, *taken(kernel.columns_bytes), *taken_by_product(call.so_far), *bias)


def _by_transposed(call: Call, kernel: _Native) -> _Events:
    columns = (*taken(kernel.columns_bytes), *taken_by_product(call.so_far))
    first = () if call.out[0] is None else (("made", 0), *columns, ("given", kernel.columns_bytes))
    return (*first, *_made(call, 1), *_bias(call, _in_one_piece(call.args[0])), *columns)


def _made(call: Call, place: int) -> _Events:
    return () if call.out[place] is None else (("made", place),)


def _bias(call: Call, grad: Any) -> _Events:
    """The gradient of the bias is a sum over everything but the channels."""
    bias = call.out[2]
    if bias is None:
        return ()
    buffers = sum_buffers(grad, bias, {0, *range(2, grad.dim())}, call.so_far.card)
    return (("made", 2), *taken(*buffers), *(("given", one) for one in buffers))


def _in_one_piece(tensor: Any) -> Any:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _within_a_range(call: Call, kernel: _Native) -> OwnMemory:
    """Copies of all that it is given and returns, the columns, and the product's workspace."""
    outs = call.out if isinstance(call.out, tuple) else (call.out,)
    given = [one for one in (*call.args[:3], *outs) if isinstance(one, torch.Tensor)]
    most = 2 * sum(map(n_bytes, given)) + kernel.columns_bytes
    return OwnMemory(
        doubt=(Certainty.ESTIMATE, _RANGE),
        perhaps=most + sum(n for kind, n in taken_by_product(call.so_far) if kind == "taken"),
        kept=kept_by_product(call.so_far),
    )
