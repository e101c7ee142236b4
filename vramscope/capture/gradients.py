"""When may ``.grad`` of a tensor be read?

Autograd's C++ code puts gradients into tensors without Python's lock (the GIL). Who reads ``.grad`` of a
tensor in that moment reads a pointer that is being freed: the process dies (8 of 8 programs that trained in
two threads did). So gradients are read only where no other thread runs a backward pass, and between asking
for that and the last gradient no other thread runs Python: the calls are chained in C, where the interpreter
has no occasion to switch.
"""

import operator
import sys
from _thread import get_ident
from collections.abc import Sequence
from itertools import chain
from time import sleep
from typing import Any

import torch

backwards: dict[int, int] = {}
"""Threads that run a backward pass now, as far as our hooks saw it begin."""

_GRADIENT = operator.attrgetter("grad")
_AT_ONCE = 500
"""So many gradients are read in 0.1 ms, in which the interpreter switches between no two threads."""


def gradients_now(tensors: Sequence[Any]) -> list[Any]:
    """The gradient of each leaf tensor, None where it has none; nothing where another thread runs backward.

    For tensors of the calling thread, while our hooks see every backward pass begin.
    """
    alone = [{get_ident(): 0}.keys(), {}.keys()]
    choice = {True: tensors, False: ()}
    with torch._C.DisableTorchFunction():
        # One expression: is a backward pass under way on other threads only, or on none? Then read.
        is_alone = map(alone.__contains__, [backwards.keys()])
        return list(map(_GRADIENT, chain.from_iterable(map(choice.__getitem__, is_alone))))


def gradients_of(tensors: Sequence[Any]) -> list[Any]:
    """Gradients that exist now, of any tensors; for the begin of a recording, when nothing is hooked yet."""
    found: list[Any] = []
    with torch._C.DisableTorchFunction():
        leaves = [tensor for tensor in tensors if tensor.is_leaf]
        for first in range(0, len(leaves), _AT_ONCE):
            # After this the interpreter does not switch to another thread for 5 ms.
            sleep(0)
            if is_backward_elsewhere():
                continue
            found += map(_GRADIENT, leaves[first : first + _AT_ONCE])
    return [gradient for gradient in found if gradient is not None]


def is_backward_elsewhere() -> bool:
    """Whether another Python thread is in a backward pass, as its call stack tells."""
    own = get_ident()
    return any(_is_in_backward(frame) for thread, frame in sys._current_frames().items() if thread != own)


def _is_in_backward(frame: Any) -> bool:
    while frame is not None:
        if frame.f_code.co_name in _ENGINES and frame.f_code.co_filename.startswith(_TORCH):
            return True
        frame = frame.f_back
    return False


_TORCH = torch.__path__[0]
# The first since torch 2.4; before it the call into C++ is made by the others.
_ENGINES = frozenset({"_engine_run_backward", "backward", "grad"})
