"""The measures of scripts/structure.py see what they are to find, and hold today."""

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "structure.py"
LAYERS = ["commands", "loading", "analysis", "capture | store", "model", "units : errors"]


@pytest.fixture(scope="module")
def structure(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(SCRIPT)


def modules(structure: ModuleType, **sources: str):
    """Modules by name, ``a__b`` for ``vramscope.a.b``; each has a file of that name."""
    names = {f"vramscope.{name.replace('__', '.')}": text for name, text in sources.items()}
    return {
        name: structure.Module(name, ROOT / f"{name.replace('.', '/')}.py", ast.parse(text), False)
        for name, text in names.items()
    }


def test_every_measure_holds_and_is_printed() -> None:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False, timeout=120)
    measured = [line for line in done.stdout.splitlines() if line.startswith("ok")]

    assert done.returncode == 0, done.stdout
    for words in (
        "import circles",
        "imports upwards",
        "imports by a string",
        "folders above 15 entries",
        "helpers imported from outside",
        "class names defined more than once",
        "files above 450 lines",
        "classes above 25 methods",
        "lines exceeded",
        "public names without a docstring",
        "docstrings that begin with of/by/as/with/those",
        "public docstrings of fewer than 4 words",
    ):
        assert any(words in line for line in measured), words
    anchors = [line for line in done.stdout.splitlines() if "harlequin" in line]
    assert len(anchors) == 2
    assert "comment lines" in anchors[1]
    assert "docstring lines" in anchors[1]


def test_make_check_runs_them() -> None:
    check = (ROOT / "Makefile").read_text().split("\ncheck:")[1].split("\n\n")[0]

    assert "scripts/structure.py" in check


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import vramscope.commands", ["vramscope.analysis.x -> vramscope.commands"]),
        ("def f():\n    from vramscope import loading", ["vramscope.analysis.x -> vramscope.loading"]),
        ("from vramscope.model import trace", []),
    ],
)
def test_an_import_upwards_is_seen_also_a_late_one(
    structure: ModuleType, source: str, found: list[str]
) -> None:
    known = modules(structure, analysis__x=source, commands="", loading="", model="", model__trace="")

    assert structure.upward_arrows(known, LAYERS, {}).places == found
    assert structure.upward_arrows(known, LAYERS, dict.fromkeys(found, "a reason")).places == []


def test_an_import_of_a_sibling_and_a_module_in_no_layer_are_seen(structure: ModuleType) -> None:
    known = modules(
        structure, capture="import vramscope.store", store="", units="import vramscope.errors", errors=""
    )

    assert structure.upward_arrows(known, LAYERS, {}).places == ["vramscope.capture -> vramscope.store"]
    assert structure.upward_arrows(modules(structure, new=""), LAYERS, {}).places == [
        "vramscope.new stands in no layer"
    ]


def test_circles_helpers_and_doubled_names_are_seen(structure: ModuleType) -> None:
    known = modules(
        structure,
        store__a="from vramscope.store import b\nclass Row: ...",
        store__b="def f():\n    import vramscope.store.a\nclass _Row: ...",
        model="import vramscope.store._helper",
        store___helper="",
    )

    assert len(structure.circles(known, {}).places) == 1
    assert structure.circles(known, {"vramscope.store.b -> vramscope.store.a": "late"}).places == []
    assert structure.circles(known, {"vramscope.model -> vramscope.store.a": "gone"}).notes != []
    assert len(structure.foreign_helpers(known).places) == 1
    assert structure.doubled_classes(known, {}).notes == ["no reason given for Row"]


def test_docstrings_are_measured(structure: ModuleType) -> None:
    source = '"""The module has a docstring."""\ndef f(): ...\ndef g():\n    """Of two words only."""\n'
    source += 'def h():\n    """Short."""\n'
    missing, beginnings, short = structure.docstrings(modules(structure, model=source))

    assert [len(each.places) for each in (missing, beginnings, short)] == [1, 1, 1]


def test_long_files_large_classes_and_the_budget_are_measured(structure: ModuleType) -> None:
    methods = "".join(f"    def m{number}(self): ...\n" for number in range(26))
    large = structure.Module("vramscope.a", ROOT / "vramscope/a.py", ast.parse("class A:\n" + methods), False)
    long = structure.Module("vramscope.b", ROOT / "vramscope/b.py", ast.parse(""), False, n_lines=451)
    known = {module.name: module for module in (large, long)}

    assert structure.long_files(known, {}).places == ["vramscope/b.py: 451 lines"]
    assert structure.long_files(known, {"vramscope/b.py": "a reason"}).holds
    assert not structure.long_files(known, {"vramscope/b.py": "a reason", "vramscope/a.py": "gone"}).holds
    assert structure.large_classes(known, {}).places == ["vramscope/a.py:1 A: 26 methods"]
    assert structure.large_classes(known, {"A": "a reason"}).holds
    assert not structure.large_classes(known, {"A": "a reason", "B": "gone"}).holds
    assert structure.lines_over(known, 450).places == ["451 lines"]
    assert structure.lines_over(known, 451).holds
