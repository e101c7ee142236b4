"""Reads ``.grad`` of tensors only while no other thread can be writing it.

Autograd's C++ code writes gradients into tensors without Python's lock (the GIL). A thread that reads
``.grad`` at that moment reads a pointer that is being freed, and the process crashes (8 of 8 programs that
trained in two threads did). So gradients are read only where no other thread runs a backward pass. Between
that check and the last gradient no other thread runs Python: the calls are chained in C, where the
interpreter cannot switch threads.
"""

import operator
import sys
from _thread import get_ident
from collections.abc import Sequence
from itertools import chain
from time import sleep
from traceback import walk_stack
from typing import Any

import torch

backwards: dict[int, int] = {}
"""The threads that run a backward pass now, by the hooks that saw it begin."""

_GRADIENT = operator.attrgetter("grad")
_AT_ONCE = 500
"""Reading this many gradients takes 0.1 ms, too short for the interpreter to switch threads."""


def gradients_now(tensors: Sequence[Any]) -> list[Any]:
    """The gradient of each leaf tensor (None if it has none); empty if another thread runs backward.

    The tensors must belong to the calling thread, and the hooks must be installed, so that every backward
    pass is seen.
    """
    alone = [{get_ident(): 0}.keys(), {}.keys()]
    choice = {True: tensors, False: ()}
    with torch._C.DisableTorchFunction():
        # One expression: is a backward pass under way on other threads only, or on none? Then read.
        is_alone = map(alone.__contains__, [backwards.keys()])
        return list(map(_GRADIENT, chain.from_iterable(map(choice.__getitem__, is_alone))))


def is_leaf(tensor: Any) -> bool | None:
    """Whether nothing computed the tensor; None for a stale view.

    A view among several is stale once its base is modified in place, as FSDP1 with ``use_orig_params`` leaves
    them. torch then raises for all that it would have to ask the graph.
    """
    try:
        return bool(tensor.is_leaf)
    except RuntimeError:
        return None


def gradients_of(tensors: Sequence[Any]) -> list[Any]:
    """The gradients of any tensors; for the beginning of a recording, before hooks are installed."""
    found: list[Any] = []
    with torch._C.DisableTorchFunction():
        leaves = [tensor for tensor in tensors if is_leaf(tensor)]
        for first in range(0, len(leaves), _AT_ONCE):
            # After sleep(0) the interpreter does not switch to another thread for 5 ms.
            sleep(0)
            if is_backward_elsewhere():
                continue
            found += map(_GRADIENT, leaves[first : first + _AT_ONCE])
    return [gradient for gradient in found if gradient is not None]


def is_backward_elsewhere() -> bool:
    """Whether the call stack of another Python thread shows a backward pass."""
    own = get_ident()
    tops = [frame for thread, frame in sys._current_frames().items() if thread != own]
    codes = [each.f_code for top in tops for each, _ in walk_stack(top)]
    return any(code.co_name in _ENGINES and code.co_filename.startswith(_TORCH) for code in codes)


_TORCH = torch.__path__[0]
# The first is torch ≥ 2.4; in older versions the other two call into C++.
_ENGINES = frozenset({"_engine_run_backward", "backward", "grad"})
