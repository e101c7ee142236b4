"""Documents describe the repository as it is: paths exist, lists are the code's, walkthroughs work."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vramscope.model.marks import BackwardKeeps, Category, MarkKind, Phase

ROOT = Path(__file__).parents[2]
DOCS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
WALKTHROUGH = "turnover"
"""The name of the parts that CONTRIBUTING lets a reader write: no file may have it."""
# Written in text as examples; what a release was once called stands in the changelog.
PLACEHOLDER = re.compile(rf"(^|/)(x|\w*{WALKTHROUGH})\.py$")
PATH = re.compile(r"`((?:[\w.-]+/)+(?:[\w.-]+\.\w+)?)`")
FOLDERS = ("vramscope", "dashboard", "tests", "benchmarks", "scripts", "docs", "sample_traces")


def paths(text: str) -> list[str]:
    """Every path of the repository in backticks, from its root or from within a package."""
    inner = {
        folder.name for package in ("vramscope", "dashboard") for folder in (ROOT / package).iterdir()
    } - {"assets"}
    found = [path for path in PATH.findall(text) if not PLACEHOLDER.search(path)]
    return [path for path in found if path.split("/")[0] in {*FOLDERS, *inner}]


def block(document: str, after: str) -> str:
    """The first block of code after a text."""
    text = (ROOT / document).read_text(encoding="utf-8").split(after)[1]
    return re.search(r"^```\w*\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)[1]


@pytest.mark.parametrize("doc", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_file_named_without_its_folder_exists(doc):
    text = (ROOT / doc).read_text(encoding="utf-8")
    there = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")} | {"setup.py"}
    named = [name for name in re.findall(r"`([\w-]+\.py)`", text) if not PLACEHOLDER.search(name)]

    assert named
    assert [name for name in named if name not in there] == []


@pytest.mark.parametrize("doc", [doc for doc in DOCS if doc.name != "CHANGELOG.md"], ids=lambda doc: doc.name)
def test_every_path_in_a_document_exists(doc):
    bases = [ROOT, ROOT / "vramscope", ROOT / "dashboard"]
    named = paths(doc.read_text(encoding="utf-8"))

    assert [path for path in named if not any((base / path).exists() for base in bases)] == []


def test_the_test_of_paths_sees_paths():
    text = "`model/nowhere.py`, `vramscope/analysis/x.py`, `tests/unit/`, `traces/run/` and `a/b.py`"

    assert paths(text) == ["model/nowhere.py", "tests/unit/"]
    assert len(paths((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))) > 20


def test_the_layers_in_the_architecture_are_those_of_the_contracts():
    contracts = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    layers = re.search(r"^layers = \[(.*?)^\]", contracts, flags=re.MULTILINE | re.DOTALL)[1]
    shown = block("ARCHITECTURE.md", "Imports go the other way, downwards only:")
    words = re.findall(r"\b[a-z_]+\b", re.sub(r"\(.*?\)", "", shown.partition("vramscope.")[2]))

    assert words == [word for word in re.findall(r"[a-z_]+", layers) if word != "__main__"]


@pytest.mark.parametrize(
    ("kind", "column"),
    [(MarkKind, "kind"), (Phase, "phase"), (Category, "category"), (BackwardKeeps, "value")],
)
def test_the_trace_format_lists_the_values_of_the_code(kind, column):
    text = (ROOT / "docs" / "trace-format.md").read_text(encoding="utf-8")
    text = text.split("### labels" if kind is Category else "### marks")[1]
    row = re.search(rf"^\| `{column}` \| \w+ \| (.*) \|$", text, flags=re.MULTILINE)[1]

    assert dict(re.findall(r"\b(\d+) ([A-Z_]+)\b", row)) == {str(each.value): each.name for each in kind}


def test_contributing_lists_at_least_fifteen_changes_each_with_a_file():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Where a change goes")[1]
    rows = re.findall(r"^\| (an? |another )(.*?) \| (.*) \|$", text.split("\n## ")[0], flags=re.MULTILINE)

    assert len(rows) >= 15
    assert [row for row in rows if not paths(row[2]) and "`findings`" not in row[2]] == []


def test_no_part_has_the_name_that_the_walkthroughs_use():
    taken = [path for folder in FOLDERS for path in (ROOT / folder).rglob(f"*{WALKTHROUGH}*")]

    assert taken == []


@pytest.mark.slow
def test_an_analysis_written_after_the_walkthrough_is_a_method(tmp_path):
    for folder in ("vramscope", "scripts", "docs"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    path = re.search(r"^.*Write `(vramscope/analysis/\w+\.py)`:$", text, flags=re.MULTILINE)[1]
    (tmp_path / path).write_text(block("CONTRIBUTING.md", f"Write `{path}`:\n"))
    command = block("CONTRIBUTING.md", "make it a typed method of `Recording`").strip().split()
    test = block("CONTRIBUTING.md", "count by hand:\n")
    imports = (
        f"from vramscope.analysis.{WALKTHROUGH} import *\n"
        "from vramscope.model.trace import Trace\nimport inspect, vramscope, vramscope.results\n"
    )
    asked = (
        f"test_{WALKTHROUGH}_counts_every_allocation_also_freed_ones()\n"
        f"print(vramscope.__file__, inspect.signature(vramscope.Recording().{WALKTHROUGH}))\n"
        f"print(vramscope.Recording().{WALKTHROUGH}(), vramscope.results.{WALKTHROUGH.title()})\n"
    )

    assert command[:2] == ["$", "python"]
    for arguments in (command[2:], ["-c", imports + test + asked]):
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={"PYTHONPATH": str(tmp_path), "PATH": ""},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr

    first, second = done.stdout.splitlines()
    assert first == f"{tmp_path}/vramscope/__init__.py () -> vramscope.analysis.turnover.Turnover"
    stub = (tmp_path / "vramscope" / "model" / "questions.pyi").read_text(encoding="utf-8")
    assert f"    def {WALKTHROUGH}(self) -> {WALKTHROUGH.title()}: ...\n" in stub
    assert second.startswith("Turnover(total_bytes=0, n_allocations=0) <class 'vramscope.analysis.turnover.")
