"""Memory of softmax and of the normalizations."""

from functools import partial
from typing import Any

import torch

from vramscope.prediction.dry import versions
from vramscope.prediction.dry.doubts import Certainty
from vramscope.prediction.dry.operators import Call, OwnMemory
from vramscope.prediction.dry.operators._reduce import copy_of, n_bytes, taken

_CHANNELS_LAST = (Certainty.ESTIMATE, "what channels that lie last take is known within a range")


def _product(call: Call) -> OwnMemory:
    """``grad * output`` is kept in a tensor of its own."""
    return OwnMemory(after=(n_bytes(call.args[0]),))


def _both_copied(call: Call) -> OwnMemory:
    return OwnMemory(after=(*copy_of(call.args[0]), *copy_of(call.args[1])))


def _norm_backward(call: Call) -> OwnMemory:
    """The input in one piece before the outputs, its gradient after them."""
    return OwnMemory(before=copy_of(call.args[1]), after=copy_of(call.args[0]))


def _input_copied(call: Call) -> OwnMemory:
    return OwnMemory(before=copy_of(call.args[0]))


def _group(call: Call) -> OwnMemory:
    """Mean and deviation of each group in float32, and with weights a factor and a term for each channel.

    Until torch 2.13 autograd made the copies of what lies badly, since then the kernels do.
    """
    source, weight, bias, batch, channels, n_places, groups = call.args[:7]
    each_group, each_channel = 4 * batch * groups, 4 * batch * channels
    wide = (each_group,) * 2 if source.element_size() < 4 else ()
    affine = (each_channel,) * 2 if n_places > 1 and (weight is not None or bias is not None) else ()
    return _of_layout(OwnMemory(after=(*copy_of(source), *wide, *affine)), source)


def _group_backward(call: Call) -> OwnMemory:
    grad, source, _, _, weight, batch, channels, n_places, groups = call.args[:9]
    each_group, each_channel = 4 * batch * groups, 4 * batch * channels
    by_channel = (each_channel,) * 2 if n_places > 1 or versions.sums_single_places() else ()
    last = (each_channel,) if n_places > 1 and weight is not None else ()
    sums = (*by_channel, each_group, each_group, *last)
    return _of_layout(OwnMemory(before=(*copy_of(grad), *copy_of(source)), after=sums), source)


def _of_layout(extra: OwnMemory, source: Any) -> OwnMemory:
    """Channels that lie last have kernels of their own from torch 2.15 on, which copy less.

    Before, one step took 14 % more than these copies explain (1,838,080 bytes on torch 2.13).
    """
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if source.is_contiguous() or source.dim() not in formats:
        return extra
    if not source.is_contiguous(memory_format=formats[source.dim()]):
        return extra
    perhaps = 3 * n_bytes(source) + sum(extra.after)
    certain = OwnMemory() if versions.normalizes_channels_last() else extra
    return certain._replace(doubt=_CHANNELS_LAST, perhaps=perhaps)


def _logsumexp(call: Call) -> OwnMemory:
    source, out = call.args[0], call.out
    row, truth = n_bytes(out), out.numel()
    first = (*taken(row, truth), ("given", truth), ("given", row))
    return OwnMemory(plan=(("made", 0), *first, *taken(n_bytes(source), row)))


def rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:  # noqa: A002
    """``aten::rms_norm``: one kernel on CUDA, and many operators elsewhere."""
    return torch.ops.aten._fused_rms_norm(input, normalized_shape, weight, eps)[0]


def _softmax(kernel: Any, input: Any, dim: int, dtype: torch.dtype | None = None) -> Any:  # noqa: A002
    """``softmax.int`` and ``log_softmax.int``: from float16 to float32 in one kernel on CUDA."""
    if input.dtype == torch.float16 and dtype == torch.float32:
        return kernel(input, dim, True)
    return kernel(input if dtype is None else input.to(dtype), dim, False)


REPLACEMENTS = {
    "rms_norm": rms_norm,
    "softmax.int": partial(_softmax, torch.ops.aten._softmax),
    "log_softmax.int": partial(_softmax, torch.ops.aten._log_softmax),
}
