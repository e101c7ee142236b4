"""Lists the names from which the program reaches its objects.

These are the locals of live frames, the globals of its modules and context variables.
"""

import contextvars
import sys
import types
from collections.abc import Iterator
from typing import Any

from vramscope.capture.holders.code_places import is_program

Word = tuple[Any, ...]
"""One step of a way: its kind, a name, and further fields of that kind.

``vramscope.model.holders`` reads these steps.
"""


def named(frame: types.FrameType | None, error: BaseException | None = None) -> Iterator[tuple[Any, Word]]:
    """Yield the roots of the program, each with its first step.

    The locals of live frames come first, the innermost before its callers, then the globals of the program's
    modules, then the context variables of the calling thread. Frames that *error* is ending count as live.
    """
    own = sys._getframe()
    for top in [frame, *(other for other in sys._current_frames().values() if other is not own)]:
        yield from _of_frames(top)
    del own
    place = None if error is None else error.__traceback__
    while place is not None:
        yield from _of_frames(place.tb_frame)
        place = place.tb_next
    if error is not None and error.__context__ is not None:  # an except clause kept it while *error* came
        yield error.__context__, ("unnamed", type(error.__context__).__name__)
    yield from of_modules(are_program=True)
    for variable, value in contextvars.copy_context().items():
        yield value, ("context", variable.name)


def _of_frames(frame: types.FrameType | None) -> Iterator[tuple[Any, Word]]:
    while frame is not None:
        code = frame.f_code
        if code.co_flags & 1 and is_program(code.co_filename):  # CO_OPTIMIZED: of a function
            for name, value in locals_of(frame).items():
                yield value, ("local", name, code.co_name, code.co_filename, frame.f_lineno)
        elif is_program(code.co_filename) and frame.f_locals is frame.f_globals:
            for name, value in list(frame.f_globals.items()):
                if not name.startswith("__"):
                    yield value, ("global", name, code.co_filename)
        frame = frame.f_back


def of_modules(*, are_program: bool) -> Iterator[tuple[Any, Word]]:
    """Yield the globals of the program's modules, or else of the libraries that may hold its tensors."""
    for name in _LAST_ERROR if not are_program else ():
        if name in vars(sys):
            yield vars(sys)[name], ("global", f"sys.{name}", "sys")
    for name, module in list(sys.modules.items()):
        if type(module) is not types.ModuleType or name.partition(".")[0] == "vramscope":
            continue
        file = vars(module).get("__file__")
        is_main = name == "__main__"  # a notebook's has no file
        if (is_main or is_program(file)) != are_program:
            continue
        if are_program or name.partition(".")[0] not in _QUIET:
            for variable, value in list(vars(module).items()):
                if not variable.startswith("__"):
                    yield value, ("global", variable, file or name)


_LAST_ERROR = ("last_exc", "last_value", "last_traceback")
# Libraries that hold no tensors of the program, and would take too much time.
_QUIET = {*sys.stdlib_module_names, "numpy", "torch", "pyarrow", "pandas", "sympy", "scipy"}
_QUIET |= {"cuda", "mpmath", "triton"}  # which come with torch's wheels for CUDA


def locals_of(frame: Any) -> dict[str, Any]:
    """Copy the locals of a function's frame without keeping them alive afterwards.

    Up to Python 3.12 ``f_locals`` is a dict that the frame keeps, and so it keeps tensors that the function
    releases later. If nobody else refers to that dict, it is cleared again.
    """
    found = frame.f_locals
    copy = dict(found)
    # Three references: the frame's own, the local variable's and the argument's.
    if type(found) is dict and found is not frame.f_globals and sys.getrefcount(found) <= 3:
        found.clear()
    return copy
