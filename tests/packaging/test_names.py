"""Names: what the package offers, who may import whom, and what an import loads."""

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import vramscope

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "numpy", "pyarrow", "pandas", "rich", "pynvml", "dash", "plotly")


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@cache
def imported(source: Path) -> frozenset[str]:
    """Every module that the file names absolutely, in an import or in a call to import_module."""
    return frozenset(_imported(source))


def _imported(source: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.partition(":")[0] if node.value.startswith("vramscope.") else ""


def loaded_by(code: str) -> set[str]:
    """Top-level names of the modules that an interpreter has after *code*."""
    shown = f"{code}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("folder", ["vramscope", "dashboard", "tests", "sample_traces", "benchmarks"])
def test_nobody_imports_the_dashboard_by_its_folders_name(folder):
    wrong = [
        str(source)
        for source in sources(folder)
        if any(name.split(".")[0] == "dashboard" for name in imported(source))
    ]

    assert wrong == []


def test_the_core_never_imports_the_dashboard():
    wrong = [
        str(source)
        for source in sources("vramscope")
        if any(name.startswith("vramscope.dashboard") for name in imported(source))
    ]

    assert wrong == []


def test_importing_vramscope_loads_nothing_heavy():
    loaded = loaded_by("import vramscope")

    assert "vramscope" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_opening_a_file_needs_neither_torch_nor_the_dashboard():
    loaded = loaded_by("import vramscope; vramscope.load")

    assert loaded.isdisjoint({"torch", "pandas", "dash", "plotly", "rich", "pynvml"})


def test_the_public_names_are_what_all_says():
    public = {
        name: getattr(vramscope, name)
        for name in dir(vramscope)
        if name == "__version__" or not name.startswith("_")
    }

    assert sorted(public) == vramscope.__all__ == sorted(vramscope.__all__)
    assert inspect.isclass(public["Recorder"])
    assert issubclass(public["VramscopeError"], Exception)


def test_a_public_name_is_no_module_whoever_imported_the_module_first():
    code = (
        "import vramscope.loading, vramscope.recorder\n"
        "from vramscope.loading import load\n"
        "assert vramscope.load is load, vramscope.load\n"
        "from vramscope.recorder import record\n"
        "assert vramscope.record is record, vramscope.record\n"
    )

    assert "vramscope" in loaded_by(code)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'profile'"):
        vramscope.profile  # noqa: B018 - the access is the test
