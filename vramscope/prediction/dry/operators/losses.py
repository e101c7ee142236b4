"""Losses: most keep a value for each element for a moment, and some for as long as the loss itself lives.

Those write the elements into the storage that becomes the result, and shrink only its shape.
"""

from typing import Any

import torch

from vramscope.prediction.dry.doubts import Certainty
from vramscope.prediction.dry.operators import Call, OwnMemory, Row
from vramscope.prediction.dry.operators._reduce import Dim, Kernel, buffers
from vramscope.prediction.dry.operators._sizes import first_copied, taken

_LOSS = "aten/src/ATen/native/Loss.cpp and cuda/Loss.cu"
_NLL = "aten/src/ATen/native/cuda/NLLLoss2d.cu"
_NONE, _REST = 0, (1, 2)


def _elements(call: Call) -> tuple[int, tuple[int, ...]]:
    """Bytes of a value for each element, and the buffers of their sum."""
    one, other = call.args[0], call.args[1]
    count = max(one.numel(), other.numel())
    size = torch.promote_types(one.dtype, other.dtype).itemsize
    kernel = Kernel(size, max(size, 4))
    return count * size, buffers([Dim(count, 0, 1)], 0, kernel, call.so_far.card)


def _is_reduced(call: Call) -> bool:
    return bool(call.given("reduction", 1) != _NONE)


def _in_place(call: Call) -> OwnMemory:
    """The elements in the result's storage, and again beside it."""
    size, sums = _elements(call)
    if not _is_reduced(call):
        return OwnMemory()
    return OwnMemory(plan=(("made_as", (0, size)), *taken(size, *sums)))


def _reduced_after(call: Call) -> OwnMemory:
    """The elements in the result's storage, and their sum beside it."""
    size, sums = _elements(call)
    if not _is_reduced(call):
        return OwnMemory()
    return OwnMemory(plan=(("made_as", (0, size)), *taken(call.out.element_size(), *sums)))


def _with_logits(call: Call) -> OwnMemory:
    size, sums = _elements(call)
    count = max(call.args[0].numel(), call.args[1].numel())
    plan: tuple[tuple[str, Any], ...] = (("made", 0), ("taken", size))
    if _is_reduced(call):
        plan = (*taken(count * call.args[0].element_size(), size), ("made", 0), *taken(*sums))
    doubt = None
    if call.given("weight") is not None or call.given("pos_weight") is not None:
        doubt = (Certainty.ESTIMATE, "what its weights take is known within a range")
    return OwnMemory(plan=plan, doubt=doubt, perhaps=0 if doubt is None else 2 * size)


def _huber(call: Call) -> OwnMemory:
    size, sums = _elements(call)
    return OwnMemory(before=(size,), after=sums) if _is_reduced(call) else OwnMemory()


ROWS = {
    "aten::mse_loss": Row(_LOSS, _in_place),
    "aten::smooth_l1_loss": Row(_LOSS, _in_place),
    "aten::binary_cross_entropy": Row(_LOSS, _reduced_after),
    "aten::soft_margin_loss": Row(_LOSS, _reduced_after),
    "aten::binary_cross_entropy_with_logits": Row(_LOSS, _with_logits),
    "aten::huber_loss": Row(_LOSS, _huber),
    "aten::mse_loss_backward": Row(_LOSS),
    "aten::smooth_l1_loss_backward": Row(_LOSS),
    "aten::huber_loss_backward": Row(_LOSS),
    "aten::binary_cross_entropy_backward": Row(_LOSS),
    "aten::nll_loss_forward": Row(_NLL),
    "aten::nll_loss_backward": Row(_NLL, first_copied),
    "aten::nll_loss2d_forward": Row(_NLL, order=(1, 0)),
    "aten::nll_loss2d_backward": Row(_NLL),
}
