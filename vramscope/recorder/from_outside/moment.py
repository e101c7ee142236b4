"""Moments at which a recording may begin or end on the main thread, wherever that was interrupted.

A request comes between any two instructions of the program. There the main thread may hold a lock of Python
that the start needs, or be inside of a call of torch whose hooks were not there when it began. So a request
waits until the main thread's stack shows neither: a training loop passes such a moment between any two calls
of its model.
"""

import sys
from types import FrameType
from typing import Any

import vramscope

_OWN = vramscope.__file__.rpartition("/")[0] + "/"
_OWN_LAUNCHER = (f"{_OWN}commands/", f"{_OWN}cli.py", f"{_OWN}__main__.py")
"""Files of vramscope that stand below a program of ``vramscope run``, for as long as it runs."""
_AROUND_PROGRAMS = (
    "utils/_contextlib.py",
    "autograd/grad_mode.py",
    "amp/autocast_mode.py",
    "distributed/run.py",
    "distributed/launcher/",
    "distributed/elastic/",
    "multiprocessing/spawn.py",
)
"""Files of torch that may stand below a whole program: decorators such as ``@torch.no_grad()``, launchers."""
_IMPORTS = "<frozen importlib"
_WITH_LOCKS = ("/threading.py", "/logging/__init__.py")
"""Modules that hold a lock while they run, which the start may need as well: it starts threads."""
_WAITS = frozenset({"wait", "join", "_wait_for_tstate_lock", "_join_os_thread"})
"""Functions of ``threading`` that wait without holding a lock of it."""


def hindrance(frame: FrameType | None, *, begins: bool) -> str:
    """Return why a recording cannot begin or end while the main thread runs *frame*; '' if it can.

    *frame* is the innermost one. To end a recording needs less than to begin one, as its own hooks are in
    place.
    """
    if begins and (found := _hindered_by_torch()):
        return found
    torch_home = _home_of_torch()
    while frame is not None:
        file, function = frame.f_code.co_filename, frame.f_code.co_name
        if file.startswith(_IMPORTS):
            return "it imports a module"
        if file.endswith(_WITH_LOCKS) and function not in _WAITS:
            return "it starts a thread or writes a log"
        if file.startswith(_OWN) and not file.startswith(_OWN_LAUNCHER):
            return "it runs vramscope itself"
        if file.startswith(torch_home) and not file.startswith(_AROUND_PROGRAMS, len(torch_home)):
            return "it is inside of a call of torch"
        frame = frame.f_back
    return ""


def is_waiting(frame: FrameType | None) -> bool:
    """Whether a thread whose innermost frame is *frame* waits for another thread, without a lock."""
    return (
        frame is not None
        and frame.f_code.co_filename.endswith(_WITH_LOCKS)
        and frame.f_code.co_name in _WAITS
    )


def place(frame: FrameType | None) -> str:
    """Return where a thread is: the innermost frame that is not of Python or torch, as ``train.py:12``."""
    torch_home = _home_of_torch()
    shown = frame
    while shown is not None:
        file = shown.f_code.co_filename
        if not file.startswith((torch_home, "<frozen")) and not file.endswith(_WITH_LOCKS):
            break
        shown = shown.f_back
    shown = shown or frame
    return "" if shown is None else f"{shown.f_code.co_filename}:{shown.f_lineno}"


def _hindered_by_torch() -> str:
    torch: Any = sys.modules["torch"]
    modes = sys.modules.get("torch.utils._python_dispatch")
    # The program would leave its mode in the wrong order, and torch would take ours away in its place.
    if getattr(modes, "_is_in_torch_dispatch_mode", False):
        return "it is inside of a dispatch mode of torch"
    # The start asks the driver for its memory, which ends a capture with an error.
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return "it captures a CUDA graph"
    return ""


def _home_of_torch() -> str:
    """The folder of torch; where it is not imported, one that holds nothing."""
    file = getattr(sys.modules.get("torch"), "__file__", None) or "\0/"
    return str(file).rpartition("/")[0] + "/"
