"""A program as ``python`` would run it: its ``__main__``, ``sys.argv``, ``sys.path[0]`` and tracebacks.

Of a notebook the code runs, cell by cell, without Jupyter.
"""

import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any, NamedTuple

from vramscope.errors import UsageError

_WITHOUT_CODE = (
    "%%bash", "%%sh", "%%html", "%%javascript", "%%js", "%%latex", "%%markdown", "%%writefile", "%%!",
)  # fmt: skip
"""Cells of these hold no Python."""


def notebook_codes(path: str, data: bytes) -> list[CodeType]:
    """Compile the code cells in their order; a frame names its cell: ``train.ipynb, cell 3``.

    Lines for Jupyter alone (``%matplotlib``, ``!pip``, ``?help``) are left out.

    Raises ValueError for what is no notebook, SyntaxError for a cell that is no Python.
    """
    try:
        book = json.loads(data)
    except RecursionError:
        raise ValueError("brackets within brackets without an end") from None
    cells = book.get("cells") if isinstance(book, dict) else None
    if not isinstance(cells, list):
        raise ValueError("a notebook has cells, and this has none")
    return [
        compile(source, f"{path}, cell {number}", "exec", dont_inherit=True)
        for number, source in enumerate(_sources(cells), 1)
    ]


def _sources(cells: list[Any]) -> Iterator[str]:
    for cell in cells:
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        given = cell.get("source", "")
        text = given if isinstance(given, str) else "".join(map(str, given))
        yield "" if text.lstrip().startswith(_WITHOUT_CODE) else "\n".join(map(_python, text.split("\n")))


def _python(line: str) -> str:
    bare = line.lstrip()
    is_jupyter = bare.startswith(("%", "!", "?")) or bare.endswith("?")
    return f"{line[: len(line) - len(bare)]}pass" if is_jupyter else line


class Script(NamedTuple):
    """A program that is ready to run."""

    codes: Sequence[CodeType]
    """Its code: that of the file, or of each cell of a notebook."""
    main: ModuleType
    argv0: str
    home: str
    """The directory for ``sys.path[0]``."""


def chosen(program: Sequence[str], word: str, *, is_module: bool) -> tuple[Script, list[str]]:
    """Prepare the program that the rest of a command line names.

    It is a script, or a module as after ``python -m``, and its arguments; a leading ``--`` is left out.
    *word* is the command, for the error that names its usage. Returns it, and its name followed by its own
    arguments. Raises UsageError if no program is named, or it does not exist.
    """
    given = list(program[1:] if program[:1] == ["--"] else program)
    if not given:
        raise UsageError(f"which program? vramscope {word} train.py, or vramscope {word} -m package.train")
    return module(given[0]) if is_module else script(given[0]), given


def script(path: str) -> Script:
    """Prepare the program that ``python path`` runs, or the cells of a notebook. Raises UsageError."""
    if not Path(path).is_file():
        raise UsageError(f"{path}: this script does not exist; a module goes with -m")
    full = os.path.abspath(path)  # noqa: PTH100 -- Python keeps links too, in __file__
    loader = SourceFileLoader("__main__", full)
    try:
        data = loader.get_data(full)
        is_notebook = path.endswith(".ipynb")
        codes = (
            notebook_codes(full, data) if is_notebook else [compile(data, full, "exec", dont_inherit=True)]
        )
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{path}: this is not Python: {error}") from None
    main = _module(full, loader, None)
    return Script(codes, main, path, str(Path(path).resolve().parent))


def module(name: str) -> Script:
    """Prepare the program that ``python -m name`` runs. Raises UsageError."""
    home = str(Path.cwd())
    _set_home(home)
    spec = _find(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _find(f"{name}.__main__")
    code = None if spec is None else getattr(spec.loader, "get_code", lambda _: None)(spec.name)
    if spec is None or code is None:
        raise UsageError(f"no module {name!r} that could be run")
    main = _module(spec.origin or name, spec.loader, spec)
    return Script([code], main, spec.origin or name, home)


def execute(target: Script, arguments: Sequence[str]) -> None:
    """Run the program; its exceptions propagate."""
    sys.argv[:] = [target.argv0, *arguments]
    _set_home(target.home)
    # It is not restored: functions that the program registered with atexit may use it.
    sys.modules["__main__"] = target.main
    for code in target.codes:
        exec(code, target.main.__dict__)  # noqa: S102 -- what the user asked for


def own_traceback(error: BaseException, target: Script) -> TracebackType | None:
    """Return the traceback without the frames before the program's own."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code not in target.codes:
        trace = trace.tb_next
    return trace or error.__traceback__


def _module(path: str, loader: object, spec: ModuleSpec | None) -> ModuleType:
    main = ModuleType("__main__")
    package, cached = (None, None) if spec is None else (spec.parent, spec.cached)
    vars(main).update(__file__=path, __loader__=loader, __spec__=spec, __package__=package)
    vars(main).update(__builtins__=sys.modules["builtins"], __cached__=cached)
    if sys.version_info < (3, 14):
        vars(main)["__annotations__"] = {}
    return main


def _find(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError) as error:
        raise UsageError(f"no module {name!r}: {error}") from None


def _set_home(home: str) -> None:
    is_safe = getattr(sys.flags, "safe_path", False) or os.environ.get("PYTHONSAFEPATH")
    if not is_safe and sys.path:
        sys.path[0] = home
