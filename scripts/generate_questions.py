"""Writes the files that follow from the code of the analyses and from the enumerations of codes.

``vramscope/model/questions.py`` has every analysis as a method of ``Recording``, ``questions.pyi`` beside it
its signature, and ``vramscope/results.pyi`` every type that such a method returns or takes. They are checked
in so that ``dir``, ``help``, completion and mypy know ``recording.peak()``. ``docs/codes.md`` lists each code
with its meaning, and ``vramscope/model/codes.pyi`` shows each as a member to type checkers.
``python scripts/generate_questions.py`` writes them; ``--check`` exits with 1 if one is out of date.
"""

import argparse
import ast
import inspect
import subprocess
import sys
import textwrap
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

if TYPE_CHECKING:
    from vramscope.analysis import Analysis

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "vramscope" / "model" / "questions.py"
STUB = TARGET.with_suffix(".pyi")
RESULTS = ROOT / "vramscope" / "results.pyi"
CODES = ROOT / "docs" / "codes.md"
CODES_STUB = ROOT / "vramscope" / "model" / "codes.pyi"
BUILTINS = frozenset(dir(__builtins__)) | {"None"}

HEAD = '''"""Every analysis as a method of ``Recording``; its signature stands in ``questions.pyi``.

``scripts/generate_questions.py`` writes both files; nobody edits them.
"""

from vramscope.model.bound_analysis import BoundAnalysis


_NAMES = """
{names}
"""


class Questions:
    """The questions that can be asked of a recording, each answered by the analysis of the same name."""

    __slots__ = ()


for _name in _NAMES.split():
    setattr(Questions, _name, BoundAnalysis(_name))
'''

STUB_HEAD = '''"""Signatures of the questions that can be asked of a recording, for type checkers and editors.

``scripts/generate_questions.py`` writes this file; nobody edits it.
"""

{imports}

class Questions:
{methods}
'''


RESULTS_HEAD = '''"""Every type that a method of ``Recording`` or ``Run`` returns or takes, with its module.

``scripts/generate_questions.py`` writes this file; nobody edits it. ``results.py`` imports what it names.
"""

{imports}
'''

CODES_STUB_HEAD = '''"""The members of the enumerations in ``codes.py``, for type checkers and editors.

``scripts/generate_questions.py`` writes this file from ``codes.tsv``; nobody edits it.
"""

from enum import Enum

QUANTITIES: tuple[str, str, str, str]

class Code(str, Enum):  # type: ignore[misc]  # without members: those that follow are its subclasses
    @property
    def meaning(self) -> str: ...
'''

CODES_HEAD = """# Codes

Words for machines: they stand in JSON (`notes[].code`, `findings[].kind`, `.severity`, `.cause`), in trace
files and in Python, where each is a member of an enumeration and equal to its value. A release may add codes;
it changes and removes none. Formats and analyses of other distributions may use words of their own.
`scripts/generate_questions.py` writes this page from `vramscope/model/codes.tsv`.
"""


def main() -> int:
    """Write the files, or with ``--check`` report whether they are up to date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if out of date")
    checked = parser.parse_args().check
    if not TARGET.exists():
        TARGET.write_text(HEAD.format(names=""))  # what is imported below needs the class
    wanted_texts = {
        TARGET: formatted(source(), TARGET),
        STUB: formatted(stub_source(), STUB),
        RESULTS: formatted(results_source(), RESULTS),
        CODES: codes_page(),
        CODES_STUB: formatted(codes_stub(), CODES_STUB),
    }
    stale = []
    for target, wanted in wanted_texts.items():
        if not checked:
            target.write_text(wanted)
        elif not target.exists() or target.read_text() != wanted:
            stale.append(str(target.relative_to(ROOT)))
    if stale:
        print(f"out of date: {', '.join(stale)}; run python scripts/generate_questions.py", file=sys.stderr)
    return 1 if stale else 0


def source() -> str:
    """The module that asks the analyses, not yet formatted."""
    from vramscope.analysis import own_analyses

    return HEAD.format(names=textwrap.fill(" ".join(sorted(own_analyses())), 110))


def stub_source() -> str:
    """The stub of that module, not yet formatted."""
    from vramscope.analysis import own_analyses

    imports: set[tuple[str, str]] = set()
    methods = [signature(analysis, imports) for _, analysis in sorted(own_analyses().items())]
    lines = "\n".join(f"from {module} import {name}" for module, name in sorted(imports))
    return STUB_HEAD.format(imports=lines, methods=textwrap.indent("\n".join(methods), "    "))


def signature(analysis: "Analysis", imports: set[tuple[str, str]]) -> str:
    """One method: the signature of the analysis with ``self`` as its first parameter."""
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
    return f"def {analysis.name}({ast.unparse(node.args)}) -> {ast.unparse(node.returns)}: ..."


def home(name: str, module: ModuleType) -> tuple[str, str]:
    """The module that *module* imports *name* from, or itself."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and node.module and any(part.name == name for part in node.names):
            return node.module, name
    return module.__name__, name


def literal(default: ast.expr, module: ModuleType) -> ast.expr:
    """The value of a constant of *module*: a stub shows it, and imports types alone."""
    if isinstance(default, ast.Name) and hasattr(module, default.id):
        return ast.parse(repr(getattr(module, default.id)), mode="eval").body
    return default


def results_source() -> str:
    """The stub of result types, not yet formatted."""
    names = result_names()
    imports = "\n".join(
        # The same name after "as": type checkers then take it for a name of this module.
        f"from {kind.__module__} import {kind.__name__} as {name}"
        for name, kind in sorted(names.items())
    )
    return RESULTS_HEAD.format(imports=imports)


def result_names() -> dict[str, type]:
    """Each public type by its name; of two that share a name, one outside of the model has a long one."""
    from vramscope.analysis import own_analyses
    from vramscope.loading import Follower
    from vramscope.model.recording import Recording, Run

    found: set[type] = set()
    for kind in (Recording, Run, Follower, *late_names().values()):
        collect(kind, found)
    for analysis in own_analyses().values():
        for hint in get_type_hints(analysis.run).values():
            collect(hint, found)
    by_name = defaultdict(list)
    for kind in found:
        by_name[kind.__name__].append(kind)
    return {
        kind.__name__ if len(kinds) == 1 or ".model." in kind.__module__ else long_name(kind): kind
        for kinds in by_name.values()
        for kind in kinds
    }


def long_name(kind: type) -> str:
    """The name of *kind* after the module that defines it: ``what_if.Outcome`` becomes ``WhatIfOutcome``."""
    return "".join(word.title() for word in kind.__module__.rpartition(".")[2].split("_")) + kind.__name__


def collect(hint: Any, found: set[type]) -> None:
    """Add to *found* every public class of ours that *hint* names, and those of its fields and properties."""
    for part in get_args(hint):
        collect(part, found)
    if not inspect.isclass(hint) or not hint.__module__.startswith("vramscope.") or hint in found:
        return
    if hint.__name__.startswith("_"):
        return
    found.add(hint)
    hints = {name: part for name, part in get_type_hints(hint).items() if not name.startswith("_")}
    for name, value in vars(hint).items():
        function = value.fget if isinstance(value, property) else value
        if inspect.isfunction(function) and not name.startswith("_"):
            hints[name] = get_type_hints(function, localns=late_names()).get("return")
    for part in hints.values():
        collect(part, found)


def late_names() -> dict[str, type]:
    """The types of the analyses that the model names for type checkers only."""
    from vramscope.analysis.findings import Shared
    from vramscope.analysis.summary import Summary
    from vramscope.model.finding import Finding
    from vramscope.model.recording import Recording

    return {"Finding": Finding, "Recording": Recording, "Shared": Shared, "Summary": Summary}


def codes_page() -> str:
    """The page of all codes: one table for each enumeration."""
    from vramscope.analysis.oom.cause import Cause
    from vramscope.model.codes import FindingKind, LeakCause, NoteCode, Severity

    tables = {
        "Notes": (NoteCode, "What is missing, doubtful, repaired or left out; every view shows it."),
        "Severities of findings": (Severity, "The gravest first."),
        "Kinds of findings": (FindingKind, "What a finding is about."),
        "Causes of leaks": (LeakCause, "The `cause` of a finding of the kind `leak` or `growing_batch`."),
        "Causes of memory errors": (Cause, "The `cause` of a finding of the kind `oom`."),
    }
    parts = [CODES_HEAD]
    for title, (kind, intro) in tables.items():
        rows = [f"| `{each.value}` | {each.meaning} |" for each in kind]
        head = ["", f"## {title}", "", f"`{kind.__module__}.{kind.__name__}`. {intro}", ""]
        parts.append("\n".join([*head, "| code | meaning |", "| --- | --- |", *rows, ""]))
    return "".join(parts)


def codes_stub() -> str:
    """The stub of the enumerations, not yet formatted."""
    from vramscope.model.codes import FindingKind, LeakCause, NoteCode, Severity

    parts = [CODES_STUB_HEAD]
    for kind in (NoteCode, Severity, FindingKind, LeakCause):
        members = "".join(f'    {each.name} = "{each.value}"\n' for each in kind)
        parts.append(f'class {kind.__name__}(Code):\n    """{kind.__doc__}"""\n\n{members}')
    return "\n".join(parts)


def formatted(text: str, target: Path) -> str:
    """The text as ``ruff`` writes it."""
    for arguments in (["check", "--fix", "-q", "--select", "I,F401,RUF022"], ["format", "-q"]):
        command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(target), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return text


if __name__ == "__main__":
    sys.exit(main())
