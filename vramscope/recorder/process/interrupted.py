"""A process that Ctrl-C ends is still killed by SIGINT after the recorder has written the rest.

Python remembers an interrupt that nobody caught in a flag, and sends itself SIGINT when everything else is
done, so that a shell stops its loop. Any ``exec`` of a text while the interpreter ends clears the flag, also
that of a ``namedtuple`` in a module that is imported only then: the exit status would be 1, and the next job
of the loop would start.
"""

import sys
from contextlib import suppress
from types import FrameType
from typing import Final

_ENTRANCES: Final = ("<module>", "_run_module_as_main")
"""Where the main program begins: a script or ``-c``, or ``-m``."""


def keep_interrupt() -> None:
    """Set Python's flag again if Ctrl-C ended the main program; to be called last at exit."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    trace = error.__traceback__ if type(error) is KeyboardInterrupt else None
    if trace is not None and _is_of_main_program(trace.tb_frame):
        with suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")  # noqa: S102 -- Python offers no other way


def _is_of_main_program(frame: FrameType) -> bool:
    """Whether an exception that began to be traced in *frame* left the program; consoles go on after it."""
    return frame.f_code.co_name in _ENTRANCES and frame.f_back is None and not hasattr(sys, "ps1")
