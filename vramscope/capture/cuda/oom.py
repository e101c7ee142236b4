"""Calls back when CUDA runs out of memory, before the program sees the error.

torch keeps an observer for the life of the process, so only one is attached; it does nothing while no
recording runs. It runs on the thread whose allocation failed, perhaps one of autograd's, without the
allocator's lock.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

from vramscope.capture.torch_versions.private_functions import OOM_OBSERVER, ask

Callback: TypeAlias = Callable[[int, int, int], None]
"""Receives the index of the device, the bytes that it asked for and those that were free; must not raise."""

_callback: Callback | None = None
_is_attached = False


def listen(callback: Callback) -> None:
    """Call *callback* from now on; CUDA must be initialized."""
    global _callback, _is_attached  # noqa: PLW0603 -- torch can attach an observer, and never detach it
    _callback = callback
    if not _is_attached:
        ask(OOM_OBSERVER, _observe)
        _is_attached = True


def ignore() -> None:
    """Stop calling the callback."""
    global _callback  # noqa: PLW0603
    _callback = None


def _observe(device: int, asked: int = 0, _: Any = None, free: int = 0) -> None:
    callback = _callback
    if callback is not None:
        # An exception raised here would replace the OutOfMemoryError that the program expects.
        with suppress(Exception):
            callback(device, asked, free)
