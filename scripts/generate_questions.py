"""Writes ``vramscope/model/questions.py``: every analysis as a typed, documented method of ``Recording``.

``python scripts/generate_questions.py`` writes the file; ``--check`` exits with 1 where it is out of date.
The file is checked in so that ``dir``, ``help``, completion and mypy know ``recording.peak()``.
"""

import argparse
import ast
import inspect
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vramscope.analysis import Analysis

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "vramscope" / "model" / "questions.py"
BUILTINS = frozenset(dir(__builtins__)) | {"None"}

HEAD = '''"""Every analysis as a method of ``Recording``.

``scripts/generate_questions.py`` writes this file; nobody edits it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
{imports}


class Questions:
    """The questions that can be asked of a recording, each answered by the analysis of the same name."""

    __slots__ = ()

    def _ask(self, name: str, **options: Any) -> Any:
        # Late: the analyses depend on the model.
        from vramscope.analysis import find

        analysis = find(name)
        if analysis is None:
            raise AttributeError(f"there is no analysis {{name!r}}")
        return analysis.run(self, **options)
'''


def main() -> int:
    """Write the file, or with ``--check`` report whether it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if out of date")
    checked = parser.parse_args().check
    if not TARGET.exists():
        TARGET.write_text(HEAD.format(imports="    pass"))  # what is imported below needs the class
    text = formatted(source())
    if not checked:
        TARGET.write_text(text)
        return 0
    if TARGET.exists() and TARGET.read_text() == text:
        return 0
    print(
        f"{TARGET.relative_to(ROOT)} is out of date: run python scripts/generate_questions.py",
        file=sys.stderr,
    )
    return 1


def source() -> str:
    """The generated module, not yet formatted."""
    from vramscope.analysis import own_analyses

    imports: set[tuple[str, str]] = set()
    methods = [method(analysis, imports) for _, analysis in sorted(own_analyses().items())]
    lines = "\n".join(f"    from {module} import {name}" for module, name in sorted(imports))
    return HEAD.format(imports=lines) + "\n" + "\n".join(methods)


def method(analysis: "Analysis", imports: set[tuple[str, str]]) -> str:
    """One method: the signature and docstring of the analysis without its first parameter."""
    module = inspect.getmodule(analysis.run)
    assert module is not None, analysis.name
    node = next(
        node
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.FunctionDef) and node.name == analysis.run.__name__
    )
    node.args.args[0].annotation = None
    node.args.args[0].arg = "self"
    node.args.defaults = [literal(default, module) for default in node.args.defaults]
    node.args.kw_defaults = [default and literal(default, module) for default in node.args.kw_defaults]
    parts = [*ast.walk(node.args), *ast.walk(node.returns or ast.Constant(None))]
    names = {part.id for part in parts if isinstance(part, ast.Name)}
    imports.update(home(name, module) for name in names - BUILTINS - {"self"})
    passed = [argument.arg for argument in [*node.args.args[1:], *node.args.kwonlyargs]]
    options = "".join(f", {name}={name}" for name in passed)
    signature = f"def {analysis.name}({ast.unparse(node.args)}) -> {ast.unparse(node.returns)}:"
    result = ast.unparse(node.returns)
    body = [f'"""{ast.get_docstring(node) or analysis.question}"""']
    if len(ast.get_docstring(node, clean=True) or "") and "\n" in (ast.get_docstring(node) or ""):
        body = [f'"""{ast.get_docstring(node)}\n"""']
    body += [f'answer: {result} = self._ask("{analysis.name}"{options})', "return answer"]
    return textwrap.indent(signature + "\n" + textwrap.indent("\n".join(body), "    "), "    ") + "\n"


def home(name: str, module: ModuleType) -> tuple[str, str]:
    """The module that *module* imports *name* from, or itself."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and node.module and any(part.name == name for part in node.names):
            return node.module, name
    return module.__name__, name


def literal(default: ast.expr, module: ModuleType) -> ast.expr:
    """The value of a constant of *module*, since the generated file must not import it."""
    if isinstance(default, ast.Name) and hasattr(module, default.id):
        return ast.parse(repr(getattr(module, default.id)), mode="eval").body
    return default


def formatted(text: str) -> str:
    """The text as ``ruff`` writes it."""
    for arguments in (["check", "--fix", "-q", "--select", "I,F401"], ["format", "-q"]):
        command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(TARGET), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return text


if __name__ == "__main__":
    sys.exit(main())
