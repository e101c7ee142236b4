"""Operators that hand their work to a library which chooses its memory at run time: cuDNN, cuFFT, cuSOLVER.

What those take cannot be known without the card, so a program that calls them gets lower bounds.
"""

import torch

from vramscope.prediction.dry.doubts import Certainty
from vramscope.prediction.dry.operators import Call, OwnMemory

_TRANSFORM = (Certainty.CANNOT_TELL, "cuFFT chooses its workspace at run time")
_SOLVER = (Certainty.CANNOT_TELL, "cuSOLVER and MAGMA choose their workspaces at run time")
_BATCH_NORM = (Certainty.ESTIMATE, "cuDNN keeps a reserve of its own size between forward and backward")


def _batch_norm(call: Call) -> OwnMemory:
    is_training = next(one for one in call.args if type(one) is bool)
    if not (torch.backends.cudnn.enabled and is_training):
        return OwnMemory()
    perhaps = call.args[0].numel() * call.args[0].element_size()
    if "backward" in call.func._schema.name:
        call.so_far.reserve_bytes = max(call.so_far.reserve_bytes - perhaps, 0)
    elif torch.is_grad_enabled():
        call.so_far.reserve_bytes += perhaps
    return OwnMemory(doubt=_BATCH_NORM, perhaps=perhaps)


def _transform(_: Call) -> OwnMemory:
    return OwnMemory(doubt=_TRANSFORM)


def _solver(_: Call) -> OwnMemory:
    return OwnMemory(doubt=_SOLVER)
