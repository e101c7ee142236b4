"""Documents describe the repository as it is: paths exist, lists are the code's, walkthroughs work."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vramscope.loading import load
from vramscope.model.marks import BackwardKeeps, Category, MarkKind, Phase
from vramscope.model.trace import Action

ROOT = Path(__file__).parents[2]
DOCS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
WALKTHROUGH = "turnover"
"""The name of the parts that CONTRIBUTING lets a reader write: no file may have it."""
# Written in text as examples; what a release was once called stands in the changelog.
PLACEHOLDER = re.compile(rf"(^|/)(x|\w*{WALKTHROUGH}\w*)\.py$")
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


@pytest.fixture(scope="module")
def after_the_walkthroughs(tmp_path_factory):
    """``run(arguments…)`` runs Python in a copy of the repository with the files of the walkthroughs."""
    tree = tmp_path_factory.mktemp("tree")
    for folder in ("vramscope", "dashboard", "scripts", "docs"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    written = re.findall(r"[Ww]rite `(\w+/\w+/\w+\.py)`:$", text, flags=re.MULTILINE)
    for path in written:
        (tree / path).write_text(block("CONTRIBUTING.md", f"rite `{path}`:\n"))
    (tree / f"test_{WALKTHROUGH}.py").write_text(block("CONTRIBUTING.md", "count by hand:\n"))
    (tree / "vramscope" / "dashboard").symlink_to(tree / "dashboard")

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tree,
            env={"PYTHONPATH": str(tree), "PATH": ""},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    words = block("CONTRIBUTING.md", "make it a typed method of `Recording`").strip().split()
    assert words[:2] == ["$", ".venv/bin/python"]
    assert len(written) == 3
    run(*words[2:])
    return run


@pytest.mark.slow
def test_an_analysis_written_after_the_walkthrough_is_a_method_that_passes_its_test(after_the_walkthroughs):
    asked = (
        "import inspect, vramscope, vramscope.results; from pathlib import Path\n"
        f"print(vramscope.__file__, inspect.signature(vramscope.Recording().{WALKTHROUGH}))\n"
        f"print(vramscope.Recording().{WALKTHROUGH}(), vramscope.results.{WALKTHROUGH.title()})\n"
        "print(Path('vramscope/model/questions.pyi').read_text())\n"
    )
    first, second, stub = after_the_walkthroughs("-c", asked).split("\n", 2)

    assert re.fullmatch(
        r"/\S+/tree\d+/vramscope/__init__.py \(\) -> vramscope.analysis.turnover.Turnover", first
    )
    assert second.startswith("Turnover(total_bytes=0, n_allocations=0) <class 'vramscope.analysis.turnover.")
    assert f"    def {WALKTHROUGH}(self) -> {WALKTHROUGH.title()}: ...\n" in stub
    passed = after_the_walkthroughs("-m", "pytest", "-q", "-p", "no:cacheprovider", f"test_{WALKTHROUGH}.py")
    assert "1 passed" in passed


@pytest.mark.slow
def test_an_export_written_after_the_walkthrough_is_listed_and_writes(after_the_walkthroughs, tmp_path):
    lines, run = tmp_path / "lines", ROOT / "sample_traces" / "transformer"
    command = ("-m", "vramscope", "export")
    shown = after_the_walkthroughs(*command, "--help")
    after_the_walkthroughs(*command, str(run), "--to", f"json_{WALKTHROUGH}", "--output", str(lines))

    assert f"json_{WALKTHROUGH}" in shown.split("--to FORMAT")[-1]
    allocated = [json.loads(line)["size"] for line in lines.read_text().splitlines()]
    (recording,) = load(run).recordings
    assert sum(allocated) == recording.trace.size[recording.trace.action == Action.ALLOC].sum()


@pytest.mark.slow
def test_a_page_written_after_the_walkthrough_is_in_the_menu(after_the_walkthroughs):
    pages = "from vramscope.dashboard.pages import pages; print([page.title for page in pages()])"

    assert WALKTHROUGH.title() in after_the_walkthroughs("-c", pages)
