"""What the documents state about the code is so, and a change of either side is noticed.

Each rule is a function of the repository's texts that returns what contradicts it. The rules are also asked
about texts with one change that makes the statement wrong: there, each must find something.
"""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest
import tomllib

from vramscope.analysis.folding import Origin, origin
from vramscope.store.schema import IN_PARTS, WHOLE

ROOT = Path(__file__).parents[2]
PRODUCT = ("vramscope", "dashboard")
VRAMSCOPE = Path(sys.executable).with_name("vramscope")
RUN = ROOT / "sample_traces" / "gan-retain-graph"
Found = TypeVar("Found")


@dataclass(frozen=True)
class Repository:
    """The texts of the documents and of the code, by path."""

    texts: dict[str, str]

    def __getitem__(self, path: str) -> str:
        return self.texts[path]

    def changed(self, path: str, old: str, new: str) -> "Repository":
        """The same with one passage changed, or with one more file where *old* is empty."""
        text = self.texts.get(path, "")
        assert old in text
        return replace(self, texts=self.texts | {path: text.replace(old, new, 1) if old else text + new})

    def found(self, what: "Callable[[str], Found]", *folders: str) -> "Iterator[tuple[str, Found]]":
        """What *what* finds in the text of each file of code below *folders*."""
        for path, text in self.texts.items():
            if path.endswith(".py") and path.startswith(folders or PRODUCT):
                yield path, what(text)


@cache
def here() -> Repository:
    found = [ROOT / "pyproject.toml", *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    for folder in ("vramscope", "dashboard"):
        found += [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.tsv")]
    return Repository(
        {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in sorted(found)}
    )


def section(text: str, start: str, end: str) -> str:
    """What stands between two passages, both of which must be there."""
    assert text.count(start) == 1, start
    after = text.split(start)[1]
    assert end in after, end
    return after.split(end)[0]


@cache
def imports(text: str) -> frozenset[str]:
    """Every module that a file imports, also late or by its name in a string."""

    def names(node: ast.AST) -> list[str]:
        if isinstance(node, ast.Import):
            return [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom) and not node.level:
            return [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        if isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            return [each.value for each in node.args if isinstance(each, ast.Constant)]
        return []

    return frozenset(name for node in ast.walk(ast.parse(text)) for name in names(node))


def homes(repository: Repository, package: str, text: str) -> list[str]:
    """Contradictions between *text*, which names folders and files, and who imports *package*."""
    named = [f"vramscope/{path}" for path in re.findall(r"`([\w/]+(?:/|\.py))`", text)]
    using = [
        path for path, names in repository.found(imports) if package in {n.partition(".")[0] for n in names}
    ]
    stray = [path for path in using if not path.startswith(tuple(named))]
    return stray + [name for name in named if not any(path.startswith(name) for path in using)]


# --------------------------------------------------------------------------------------- the rules


def torch_is_known_where_the_architecture_says(repository: Repository) -> list[str]:
    text = section(repository["ARCHITECTURE.md"], "**torch in three places**", "Everything else runs")
    n_folders = len(re.findall(r"`\w+/`", text))

    return homes(repository, "torch", text) + ([] if n_folders == 3 else [f"{n_folders} folders"])


def arrow_is_known_where_the_architecture_says(repository: Repository) -> list[str]:
    return homes(repository, "pyarrow", section(repository["ARCHITECTURE.md"], "pyarrow appears in", "only:"))


EXAMPLES = {
    "installed packages": "/home/me/.venv/lib/python3.11/site-packages/einops/einops.py",
    "the standard library": "/usr/lib/python3.11/contextlib.py",
    "C++": "CUDACachingAllocator.cpp",
    "vramscope itself": "/src/vramscope/vramscope/capture/simulated/__init__.py",
}
"""A file of each kind that the documents say is folded."""


def frames_are_folded_as_the_documents_say(repository: Repository) -> list[str]:
    inner = section(repository["docs/concepts.md"], "those of frameworks (", ") are folded")
    lists = [
        re.sub(r"\s+", " ", text).removeprefix("frames of ")
        for text in (
            inner,
            section(repository["docs/commands.md"], "names a row; ", " are folded and counted"),
        )
    ]
    kinds = {kind for text in lists for kind in re.split(r", | and ", text)}
    wrong = [kind for kind in kinds if kind in EXAMPLES and origin(EXAMPLES[kind]) is Origin.USER]

    return sorted({*kinds} ^ {*EXAMPLES}) + wrong


ELSEWHERE = {
    "AWS_ACCESS_KEY_ID",
    "AWS_ENDPOINT_URL",
    "AWS_PROFILE",
    "AWS_SECRET_ACCESS_KEY",
    "CUDA_VISIBLE_DEVICES",
    "Max_MA",
    "OMP_NUM_THREADS",
    "VRAMSCOPE_TESTS",
    "at_rest",
    "export_chrome_trace",
    "host_memory_stats",
    "max_memory_reserved",
    "mem_tracker",
    "masked_select",
    "reshard_after_forward",
    "see_memory_usage",
    "skip_memory_metrics",
    "to_csv",
    "vramscope_events_total",
    "vramscope_failed_allocations_total",
    "vramscope_nvml_peak_process_used_bytes",
    "vramscope_peak_requested_bytes",
    "vramscope_steps_total",
    "wall_clock_breakdown",
} | {f"{when}_{what}" for when in ("initial", "final") for what in ("segments", "blocks")}
"""Names in the documents that are torch's or the tests', and names of files that ``export`` puts together."""


@cache
def identifiers(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w*_\w+", text))


def identifiers_in_documents_exist(repository: Repository) -> list[str]:
    known = ELSEWHERE.union(*(words for _, words in repository.found(identifiers)))
    known |= {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    known |= {path.stem for path in (ROOT / "vramscope").rglob("*_*.py")}
    tables = (text for path, text in repository.texts.items() if path.endswith(".tsv"))
    known |= {name for text in tables for name in re.findall(r"\b[a-zA-Z]\w*_\w+\b", text)}
    return [
        f"{path}: {name}"
        for path, text in repository.texts.items()
        if path.endswith(".md") and path != "CHANGELOG.md"
        for span in re.findall(
            r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        )
        if not re.search(r"/|^torch\.", span)
        for name in re.findall(r"\b[a-zA-Z]\w*_\w+\b", span)
        if name not in known and not name.endswith("_turnover")
    ]


@cache
def declared_sources(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"^ *\w+ = Source\([\"'](\w+)", text, flags=re.MULTILINE))


def the_trace_format_names_versions_and_sources(repository: Repository) -> list[str]:
    text = repository["docs/trace-format.md"]
    row = section(text, "| `source` | string |", "|\n")
    sources = {name for _, names in repository.found(declared_sources) for name in names}
    whole, parts = (".".join(map(str, version)) for version in (WHOLE, IN_PARTS))
    stated = {
        f"# The trace directory, schema {whole} and {parts}": "title",
        f'`"schema": {{"major": {WHOLE[0]}, "minor": {WHOLE[1]}}}`, or {parts} for': "manifest",
        f"the schema is {parts} (": "parts",
    }
    return sorted({*re.findall(r"`(\w+)`", row)} ^ sources) + [
        where for passage, where in stated.items() if passage not in text
    ]


@cache
def number_fields(text: str) -> tuple[str, ...]:
    """``Class.field`` of each number of each dataclass."""
    return tuple(
        f"{kind.name}.{each.target.id}"
        for kind in ast.walk(ast.parse(text))
        if isinstance(kind, ast.ClassDef)
        and any("dataclass" in ast.unparse(by) for by in kind.decorator_list)
        for each in kind.body
        if isinstance(each, ast.AnnAssign)
        and ast.unparse(each.annotation) in ("int", "float", "int | None", "float | None")
    )


QUANTITY = re.compile(
    r"\.(?:bytes|(?:peak|total|free|used|live|requested|allocated|active|reserved)(?:_[a-z]+)?)$"
)


def numbers_of_results_carry_their_unit(repository: Repository) -> list[str]:
    stated = section(repository["CONTRIBUTING.md"], "every number of a result:", ". A `size`")
    units = re.findall(r"`(_\w+)`", stated)
    return [f"no {unit}" for unit in {"_bytes", "_ns", "_s", "_fraction"} ^ {*units}] + [
        f"{path} {field}"
        for path, fields in repository.found(number_fields, "vramscope/analysis/")
        for field in fields
        if QUANTITY.search(field) and not field.endswith(tuple(units))
    ]


def foreign_exceptions_are_caught_at_the_named_boundaries(repository: Repository) -> list[str]:
    text = section(repository["ARCHITECTURE.md"], "It is caught only at boundaries", "Each such `except`")
    named = re.findall(r"`([\w/]+(?:/|\.py))`", text)
    named = [path if path.startswith("dashboard") else f"vramscope/{path}" for path in named]
    found = [
        (path, line, is_explained)
        for path, places in repository.found(swallowing)
        for line, is_explained in places
    ]
    return [
        f"{path}:{line} is {'no boundary' if is_explained else 'not explained'}"
        for path, line, is_explained in found
        if not path.startswith(tuple(named)) or not is_explained
    ] + [f"{name} catches nothing" for name in named if not any(path.startswith(name) for path, *_ in found)]


@cache
def swallowing(text: str) -> tuple[tuple[int, bool], ...]:
    """Lines that end a foreign exception, and whether a comment or a report explains each."""
    return tuple(_swallowing(ast.parse(text), text.splitlines()))


def _swallowing(tree: ast.Module, lines: list[str]) -> Iterator[tuple[int, bool]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            caught = ast.unparse(node.type) if node.type else "BaseException"
            # A handler whose last word is `raise` passes on what it caught, or an error of ours.
            if caught in ("Exception", "BaseException") and not isinstance(node.body[-1], ast.Raise):
                named = {
                    each.id for part in node.body for each in ast.walk(part) if isinstance(each, ast.Name)
                }
                around = lines[node.lineno - 1 : node.body[0].lineno]
                yield node.lineno, node.name in named or any("#" in line for line in around)
        elif isinstance(node, ast.With):
            caught = ast.unparse(node.items[0].context_expr)
            if re.search(r"suppress\((?:Base)?Exception\)", caught):
                before = lines[max(node.lineno - 8, 0) : node.lineno]
                yield node.lineno, any("#" in line or '"""' in line for line in before)


WRITERS = {
    "check --junit",
    "export --output",
    "demo --output",
    "run --output",
    "predict --output",
}
"""The options that name what is written; ``test_nothing_is_overwritten`` tries each."""


def nothing_is_overwritten_by_any_option(repository: Repository) -> list[str]:
    tables = (repository["vramscope/commands/commands.tsv"], repository["dashboard/commands.tsv"])
    rows = [line.split("\t") for table in tables for line in table.splitlines()]
    found = {
        f"{row[0]} {row[1]}"
        for row in rows
        if len(row) > 4 and row[3] and re.match("where to|also write|write|where the recording", row[4])
    }
    by_hand = repository.found(lambda text: "add_argument(" in text, "vramscope/commands/", "dashboard/")
    found |= {path for path, is_added in by_hand if is_added and path != "vramscope/commands/__init__.py"}
    text = re.sub(r"\s+", " ", repository["ARCHITECTURE.md"])
    stated = "Nothing is overwritten without `--force`" in text and "the new one goes to `run-2`" in text
    return sorted(found ^ WRITERS) + ([] if stated else ["the rule is not stated"])


@cache
def function_lines(text: str) -> tuple[int, ...]:
    return tuple(
        node.end_lineno - node.lineno + 1
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def sizes_are_as_contributing_says(repository: Repository) -> list[str]:
    text = repository["CONTRIBUTING.md"]
    (lines, per_file), (complexity, parameters) = (
        map(int, re.search(pattern, text).groups())
        for pattern in (
            r"Functions aim at (\d+) lines and files at (\d+)\.",
            r"Complexity\s+at most (\d+), parameters at most (\d+)\.",
        )
    )
    lint = tomllib.loads(repository["pyproject.toml"])["tool"]["ruff"]["lint"]
    sizes = sorted(size for _, found in repository.found(function_lines) for size in found)
    files = sorted(n_lines for _, n_lines in repository.found(lambda text: text.count("\n")))
    held = {
        "complexity": lint["mccabe"]["max-complexity"] == complexity and "C90" in lint["select"],
        "parameters": lint["pylint"]["max-args"] == parameters and "PL" in lint["select"],
        "functions": sizes[len(sizes) // 2] <= lines,
        "files": files[len(files) // 2] <= per_file,
    }
    return [name for name, holds in held.items() if not holds]


def runs_are_opened_by_one_module_of_the_dashboard(repository: Repository) -> list[str]:
    (door,) = re.findall(
        r"`(dashboard/\w+\.py)`, the only\s+one that opens runs", repository["ARCHITECTURE.md"]
    )
    opening = [path for path, names in repository.found(opened, "dashboard/") if names]
    reading = [
        path for path, calls in repository.found(read, "dashboard/pages/", "dashboard/figures/") if calls
    ]
    return (
        [path for path in opening if path != door]
        + reading
        + ([] if door in opening else [f"{door} opens none"])
    )


@cache
def opened(text: str) -> tuple[str, ...]:
    """What a file imports to open runs; finding them in a folder opens none."""
    named = [*imports(text), *re.findall(r"\bvramscope\.(?:load|follow)\b", text)]
    modules = r"loading(?:\.(?!discover)\w+)?|store\.read\b.*|formats\b.*|load|follow"
    return tuple(
        name
        for name in named
        if re.fullmatch(rf"vramscope\.(?:{modules})", name)
        and not (name == "vramscope.loading" and "vramscope.loading.discover" in named)
    )


@cache
def read(text: str) -> tuple[str, ...]:
    calls = [ast.unparse(node.func) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return tuple(call for call in calls if re.search(r"(?:^|\.)(?:open|read_\w+)$", call))


# --------------------------------------------------------------------------------- held, and noticed

A, C, FORMAT = "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/trace-format.md"
SWALLOW = "try:\n    x()\nexcept Exception as error:\n    print(error)\n"
SILENT = "try:\n    x()\nexcept Exception:\n    pass\n"
OPTION = "\nreport\t--csv\ttext\tFILE\twhere to write\n"
ADDED = "p.add_argument('--csv', metavar='FILE', help='where to write')\n"
UNNAMED = "@dataclass\nclass X:\n    peak_reserved: int\n"

Rule = Callable[[Repository], list[str]]
CHANGES: dict[Rule, list[tuple[str, str, str]]] = {
    torch_is_known_where_the_architecture_says: [
        (A, "`capture/`, `recorder/`", "`capture/`"),
        (A, " and `prediction/`, beside", ", `prediction/` and `fleet/`, beside"),
        ("vramscope/units.py", "", "\ndef f():\n    import torch\n"),
    ],
    arrow_is_known_where_the_architecture_says: [
        (A, "`store/` and `export/` only", "`store/` only"),
        ("vramscope/cli.py", "", "\nfrom pyarrow import ipc\n"),
    ],
    frames_are_folded_as_the_documents_say: [
        ("docs/commands.md", "installed packages, ", "installed packages, PyTorch, "),
        ("docs/concepts.md", "(installed\npackages", "(transformers"),
    ],
    identifiers_in_documents_exist: [
        ("docs/concepts.md", "`requested_bytes`", "`requested_in_use_bytes`"),
        (A, "", "\n`recording.nothing_of_that_name()`\n"),
    ],
    the_trace_format_names_versions_and_sources: [
        (FORMAT, "schema 1.7 and", "schema 1.6 and"),
        (FORMAT, '"minor": 7', '"minor": 6'),
        (FORMAT, "; or `predicted`: the", "; or: the"),
        ("vramscope/capture/x.py", "", "SOURCE = Source('rocm', a, b)"),
    ],
    numbers_of_results_carry_their_unit: [
        (C, "`_bytes`, `_ns`,", "`_ns`,"),
        ("vramscope/analysis/x.py", "", UNNAMED),
    ],
    foreign_exceptions_are_caught_at_the_named_boundaries: [
        (A, "(`recorder/`, `capture/`, `prediction/dry/`, and", "(`capture/` and"),
        (A, "(`registry.py`)", "(`registry.py`, `units.py`)"),
        ("vramscope/units.py", "", SWALLOW),
        ("vramscope/recorder/x.py", "", SILENT),
        ("vramscope/recorder/x.py", "", "with suppress(Exception):\n    x()\n"),
    ],
    nothing_is_overwritten_by_any_option: [
        (A, "without `--force`", "ever"),
        ("vramscope/commands/commands.tsv", "report\t--where", f"{OPTION}report\t--where"),
        ("vramscope/commands/x.py", "", ADDED),
    ],
    sizes_are_as_contributing_says: [
        (C, "parameters at most 6", "parameters at most 5"),
        (C, "at most 10, parameters", "at most 8, parameters"),
        (C, "and files at 150", "and files at 50"),
        ("pyproject.toml", "max-args = 6", "max-args = 7"),
    ],
    runs_are_opened_by_one_module_of_the_dashboard: [
        (A, "`dashboard/runs.py`, the only", "`dashboard/address.py`, the only"),
        ("dashboard/pages/x.py", "", "from vramscope.loading import load\n"),
        ("dashboard/queries/x.py", "", "vramscope.load('x')\n"),
        ("dashboard/pages/x.py", "", "path.read_text()\n"),
    ],
}
"""Changes that contradict each rule, of a document or of the code: the file, what, by what."""


@pytest.mark.parametrize("rule", CHANGES, ids=lambda rule: rule.__name__)
def test_it_is_so(rule: Rule) -> None:
    assert rule(here()) == []


@pytest.mark.parametrize("rule", CHANGES, ids=lambda rule: rule.__name__)
def test_a_change_that_makes_it_wrong_is_noticed(rule: Rule) -> None:
    unnoticed = [change for change in CHANGES[rule] if rule(here().changed(*change)) == []]

    assert unnoticed == []


@pytest.mark.parametrize("option", sorted(WRITERS))
def test_nothing_is_overwritten(option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = option.partition(" ")[0]
    existing = tmp_path / "run"
    mine = existing if command == "check" else existing / "rank0" / "manifest.json"
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.write_text("mine")
    script = tmp_path / "train.py"
    script.write_text("import torch\n\nx = torch.ones(8, device=torch.device('cpu'))\n")
    monkeypatch.chdir(tmp_path)
    # A copy: a summary is kept beside a trace that has none.
    run = shutil.copytree(RUN, tmp_path / "recorded")
    given = {
        "check": [str(run), "--max-peak", "1TiB", "--junit", str(existing)],
        "export": [str(run), "--to", "csv", "--output", str(existing)],
        "demo": ["--output", str(existing), "--no-serve"],
        "run": ["--output", str(existing), str(script)],
        "predict": ["--output", str(existing), str(script)],
    }

    done = subprocess.run(
        [VRAMSCOPE, command, *given[command]], capture_output=True, text=True, check=False, timeout=120
    )

    assert mine.read_text() == "mine"
    assert sum(path.is_file() for path in [existing, *existing.rglob("*")]) == 1
    if command in ("run", "predict"):
        assert (tmp_path / "run-2" / "rank0" / "manifest.json").exists(), done.stderr
    else:
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
