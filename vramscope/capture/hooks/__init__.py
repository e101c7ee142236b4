"""Marks the program's phases through torch's own hooks, with no change to the training loop.

The hooks are module-level functions of this package and stay the same objects for the life of the process:
torch.compile guards on their identity, and would otherwise compile again after every ``with record():``. They
return immediately while torch.compile traces them.
"""

import gc
import warnings
from contextlib import suppress

from vramscope.capture.hooks.calls import hook_calls
from vramscope.capture.hooks.forwards import hook_modules, hook_roots
from vramscope.capture.hooks.open_phases import (
    Listener,
    forget_thread,
    has_collected,
    listen,
    loads_data,
    module_now,
    once_a_hook,
    other_threads,
    recursion_notes,
    state,
    works_for_another,
)
from vramscope.capture.hooks.pools import hook_pools

__all__ = [
    "Listener", "forget_thread", "has_collected", "install", "listen", "loads_data", "module_now",
    "once_a_hook", "other_threads", "recursion_notes", "uninstall", "works_for_another",
]  # fmt: skip


def install(listener: Listener) -> None:
    """Report the program's events to *listener* until ``uninstall``.

    If the listener has a module log (``modules``), the running module is recorded there.
    """
    listen(listener)
    if state.log is None:
        hook_roots()
    else:
        hook_modules()
    hook_calls()
    hook_pools()
    state.collections = gc.get_stats()[-1]["collections"]
    _silence_compile()


def uninstall() -> None:
    """Remove every hook; harmless if none is installed."""
    state.listener = state.log = None
    while state.leave_root:
        with suppress(KeyError):  # its thread removed it first
            state.leave_root.popitem()[1]()
    while state.undo_all:
        # A Ctrl-C may come before the first line of it: it stays until it is done, and can be repeated.
        state.undo_all[-1]()
        del state.undo_all[-1:]
    state.threads.clear()


def _silence_compile() -> None:
    """Silence torch's warning that global hooks fire again for a compiled module; here it is harmless."""
    warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when there are global hooks")
    entry = warnings.filters[0]

    def undo() -> None:
        if entry in warnings.filters:
            warnings.filters.remove(entry)  # type: ignore[attr-defined]

    state.undo_all.append(undo)
