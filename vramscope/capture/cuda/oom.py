"""Calls back when CUDA runs out of memory, before the program sees the error.

torch keeps an observer for the life of the process, so only one is attached; it does nothing while no
recording runs. It runs on the thread whose allocation failed, perhaps one of autograd's, without the
allocator's lock.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

import torch

Callback: TypeAlias = Callable[[int], None]
"""Receives the index of the device; must not raise."""

_callback: Callback | None = None
_is_attached = False


def listen(callback: Callback) -> None:
    """Call *callback* from now on; CUDA must be initialized."""
    global _callback, _is_attached  # noqa: PLW0603 -- torch can attach an observer, and never detach it
    _callback = callback
    attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
    if attach is not None and not _is_attached:
        attach(_observe)
        _is_attached = True


def ignore() -> None:
    """Stop calling the callback."""
    global _callback  # noqa: PLW0603
    _callback = None


def _observe(device: int, _size: int, _total: int, _free: int) -> None:
    callback = _callback
    if callback is not None:
        # An exception raised here would replace the OutOfMemoryError that the program expects.
        with suppress(Exception):
            callback(device)
