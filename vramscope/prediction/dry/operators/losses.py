"""Losses: most keep a value for each element for a moment, and some for as long as the loss itself lives.

Those write the elements into the storage that becomes the result, and shrink only its shape.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from vramscope.prediction.dry.doubts import Certainty
from vramscope.prediction.dry.operators import Call, OwnMemory
from vramscope.prediction.dry.operators._reduce import Dim, Kernel, buffers, n_bytes, taken
from vramscope.prediction.dry.state import state
from vramscope.prediction.dry.values import known

_NONE, _MEAN = 0, 1


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


def _ctc(log_probs: Any, _targets: Any, _inputs: Any, lengths: Sequence[int], *_: Any) -> Any:
    """The loss of each sequence, and a number for each time and each label with the blanks between labels."""
    time, batch = log_probs.shape[:2]
    states = (batch, time, 2 * max(lengths) + 1)
    return [((batch,), log_probs.dtype), (states, log_probs.dtype)]


def ctc_loss(
    log_probs: Any,
    targets: Any,
    _inputs: Any,
    lengths: Any,
    blank: int = 0,
    reduction: int = 1,
    zero: bool = False,
) -> Any:
    """``aten::ctc_loss`` of lengths on the host, which torch asks for their numbers."""
    values = known.value_of(lengths)
    if values is None:
        why = "its lengths are values on the card: that all labels are as long as their room is assumed"
        state().doubts.add(Certainty.ESTIMATE, "aten.ctc_loss", why)
    numbers = [targets.size(-1)] * log_probs.size(1) if values is None else values.tolist()
    given = [log_probs.size(0)] * log_probs.size(1)
    loss = torch.ops.aten._ctc_loss.default(log_probs, targets, given, numbers, blank, zero)[0]
    if zero:
        loss = torch.where(loss == math.inf, 0.0, loss)
    if reduction == _MEAN:
        return (loss / torch.tensor(numbers, dtype=loss.dtype, device=loss.device).clamp_min(1)).mean()
    return loss if reduction == _NONE else loss.sum()


def _of_second(_: Any, tensor: Any, *__: Any) -> Any:
    return [(tuple(tensor.shape), tensor.dtype)]


SIZES: dict[str, Callable[..., Any]] = {
    "aten::_ctc_loss": _ctc,
    "aten::_ctc_loss_backward": _of_second,
    "aten::multi_margin_loss_backward": _of_second,
}
"""How big results are, where torch says it on a device only."""
REPLACEMENTS = {"ctc_loss.Tensor": ctc_loss}


def _with_lengths(call: Call) -> OwnMemory:
    """Lengths of sequences and labels and the places of these, copied to the card."""
    batch = call.args[0].size(1)
    return OwnMemory(before=(8 * batch,) * 3, order=(1, 0))


def _ctc_backward(call: Call) -> OwnMemory:
    """The lengths again, and the numbers of the other direction."""
    alpha = call.args[6]
    return OwnMemory(after=(n_bytes(alpha), *(8 * alpha.size(0),) * 3))
