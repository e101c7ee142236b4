"""Callback when CUDA runs out of memory, before the program is.

torch keeps an observer for the life of the process, so there is one, which does nothing while nobody records.
It runs where the allocation failed, perhaps on autograd's thread, and without the allocator's lock.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

import torch

Callback: TypeAlias = Callable[[int], None]
"""The device; must not raise."""

_callback: Callback | None = None
_is_attached = False


def listen(callback: Callback) -> None:
    """From now on call *callback*; needs CUDA to be initialized."""
    global _callback, _is_attached  # noqa: PLW0603 -- torch can attach an observer, and never detach it
    _callback = callback
    attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
    if attach is not None and not _is_attached:
        attach(_observe)
        _is_attached = True


def ignore() -> None:
    """No longer."""
    global _callback  # noqa: PLW0603
    _callback = None


def _observe(device: int, _size: int, _total: int, _free: int) -> None:
    callback = _callback
    if callback is not None:
        # Whatever is raised here would replace the error that the program waits for.
        with suppress(Exception):
            callback(device)
