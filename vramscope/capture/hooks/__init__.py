"""What is the program doing? Marks out of torch's own hooks, with no change to the loop.

The hooks are functions of this module's neighbours and stay the same objects for the life of the process:
torch.compile guards on their identity, and would compile again after every ``with record():`` otherwise. They
return at once while torch.compile traces them.
"""

import warnings
from contextlib import suppress

from vramscope.capture.hooks.calls import hook_calls
from vramscope.capture.hooks.forwards import hook_modules, hook_roots
from vramscope.capture.hooks.open_phases import (
    Listener,
    forget_thread,
    has_collected,
    module_now,
    other_threads,
    recursion_notes,
    state,
)

__all__ = [
    "Listener",
    "forget_thread",
    "has_collected",
    "install",
    "module_now",
    "other_threads",
    "recursion_notes",
    "uninstall",
]


def install(listener: Listener) -> None:
    """Tell *listener* what happens, until ``uninstall``; its ``modules``, if any, learn which module runs."""
    state.listener = listener
    state.log = getattr(listener, "modules", None)
    if state.log is None:
        hook_roots()
    else:
        hook_modules()
    hook_calls()
    has_collected()
    _silence_compile()


def uninstall() -> None:
    """Take every hook out again; harmless when there is none."""
    state.listener = state.log = None
    while state.leave_root:
        with suppress(KeyError):  # its thread was faster
            state.leave_root.popitem()[1]()
    while state.undo_all:
        state.undo_all.pop()()
    state.threads.clear()


def _silence_compile() -> None:
    """torch warns that global hooks fire once more for a compiled module; with ours nobody need care."""
    warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when there are global hooks")
    entry = warnings.filters[0]

    def undo() -> None:
        if entry in warnings.filters:
            warnings.filters.remove(entry)  # type: ignore[attr-defined]

    state.undo_all.append(undo)
