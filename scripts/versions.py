"""The tests on every Python and with every torch: runs them, and writes what they said to docs/versions.md.

``python scripts/versions.py`` runs everything, which takes hours; ``--python 3.13`` or ``--torch 2.15.0`` a
row, ``--only bare,truth`` some columns, and ``--write`` none. What the page says of a cell stays until the
same cell runs again, so the table can be made in portions; a row has the day of its oldest result.
``--failed`` runs, of the cells that are asked for, what failed there, and leaves the results of the others.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from environments import ROOT, done, environment, interpreter

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
TORCHES = ("2.6.0", "2.9.0", "2.11.0", "2.13.0", "2.14.1", "2.15.0")
PAGE = ROOT / "docs" / "versions.md"
HOMES = ROOT / ".cache" / "pythons"
TORCH_OF_PYTHONS = "2.13.0"
"""What the tests on other Pythons run with; the newest that has a build for each of them."""

SIMULATED = ("tests/unit/capture", "tests/unit/test_record.py")
DRY_RUNS = "tests/unit/prediction"
WITH_FILES = ("allocator", "analysis", "columns", "export", "following", "formats", "model", "steps", "store")
FILES = tuple(f"tests/unit/{name}" for name in WITH_FILES)
TRAININGS = ("tests/cuda/test_truth.py", "tests/cuda/test_every.py")
COMMANDS = ("tests/unit", *(f"--ignore={path}" for path in (*SIMULATED, *FILES, DRY_RUNS)))
PYTHON_COLUMNS = {
    "bare": "the wheel alone",
    "dashboard": "the wheel with `[dashboard]`",
    "files": "analyses and files",
    "simulated": "recording, simulated device",
    "truth": "trainings, CUDA",
    "commands": "commands and pages",
}
TORCH_COLUMNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "truth": ("twelve trainings", ("tests/cuda/test_truth.py", "tests/cuda/test_no_harm.py")),
    "capture": (
        "recording",
        ("tests/unit/capture", "tests/cuda/test_small_ring.py", "tests/cuda/test_deaths.py"),
    ),
    "formats": ("snapshots", ("tests/cuda/test_bare_snapshots.py",)),
    "prediction": (
        "prediction",
        ("tests/cuda/test_predictions.py", "tests/cuda/test_sharded_predictions.py"),
    ),
}
TORCH_COLUMNS["others"] = (
    "all others",
    ("tests", *(f"--ignore={path}" for _, paths in TORCH_COLUMNS.values() for path in paths)),
)
"""What the genuine allocators are asked: a title, and the tests, of which those marked standin run."""

Results = dict[str, dict[str, dict[str, Any]]]
"""Row ("Python 3.10") → column → what pytest said."""


def main() -> int:
    """Run what is asked for and write the page; return 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", type=_words, help="versions of Python, such as 3.10,3.13")
    parser.add_argument("--torch", type=_words, help="versions of torch, such as 2.15.0")
    parser.add_argument("--only", type=_words, help="columns, such as bare,truth")
    parser.add_argument("--write", action="store_true", help="only write the page again")
    parser.add_argument("--failed", action="store_true", help="only the tests that failed in these cells")
    asked = parser.parse_args()
    everything = not (asked.python or asked.torch or asked.write)
    for version in PYTHONS if everything else asked.python or ():
        python = interpreter(version)
        full = _version(python) if python else version
        _add(f"Python {version}", python_cells(version, python), asked, full)
    for version in TORCHES if everything else asked.torch or ():
        _add(f"torch {version}", torch_cells(version), asked, version)
    results = kept(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(page(results), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)} is written")
    return int(any(cell.get("failed") for row in results.values() for cell in row.values()))


def _words(text: str) -> list[str]:
    return text.split(",")


Cells = Mapping[str, Callable[[], dict[str, Any]]]


def _add(row: str, cells: Cells, asked: argparse.Namespace, full: str) -> None:
    """Run the cells of a row, whose version is *full*, and write each result into the page at once."""
    for column, run in cells.items():
        before = kept(PAGE.read_text(encoding="utf-8")).get(row, {}).get(column, {})
        if (asked.only and column not in asked.only) or (asked.failed and not before.get("failed")):
            continue
        print(f"{row}: {column}", flush=True)
        now = datetime.now(timezone.utc)
        try:
            said = after(before, run) if asked.failed else run()
        except AssertionError as error:  # what it needs cannot be made
            said = {"missing": str(error).strip().splitlines()[-1]}
        results = kept(PAGE.read_text(encoding="utf-8"))
        results.setdefault(row, {})[column] = said | {"on": full, "day": f"{now:%Y-%m-%d}"}
        PAGE.write_text(page(results), encoding="utf-8")
        print(f"  {_cell(said)}", flush=True)


def after(before: Mapping[str, Any], run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run those tests alone that failed *before*, and return the counts of all."""
    names = [name.partition(": ")[2].partition("[")[0] for name in before["names"]]
    os.environ["PYTEST_ADDOPTS"] = f"-k '{' or '.join(names)}'"
    again = run()
    del os.environ["PYTEST_ADDOPTS"]
    assert again["passed"] + again["failed"] >= before["failed"], "what failed did not run again"
    still = [name for name in before["names"] if name in again["names"]]
    passed = before["passed"] + before["failed"] - len(still)
    return {**before, "passed": passed, "failed": len(still), "names": still}


# What runs


def python_cells(version: str, python: Path | None) -> Cells:
    """Return what is run on one Python, by column."""
    if python is None:
        return {name: lambda: {"missing": "the machine has none"} for name in PYTHON_COLUMNS}
    wheel = "tests/packaging/test_wheel_on_other_pythons.py"
    home, standin = HOMES / version, HOMES / version / "standin"
    variables = {"MATRIX_PYTHONS": version}

    def with_tests() -> Path:
        if not (home / "bin" / "pytest").exists():
            wanted = (
                "pip",
                "--group",
                f"{ROOT / 'pyproject.toml'}:tests",
                "--editable",
                f"{ROOT}[dashboard]",
            )
            environment(home, *wanted, python=python)
        return home / "bin" / "python"

    def with_torch() -> Path:
        done(with_tests(), ROOT / "tests/standin/build.py", "--torch", TORCH_OF_PYTHONS, "--to", standin)
        # Found by every program that a test starts, whatever its PYTHONPATH.
        site = home / "lib" / f"python{version}" / "site-packages" / "torch_of_the_standin.pth"
        site.write_text(f"{standin / TORCH_OF_PYTHONS / 'packages'}\n")
        return with_tests()

    libraries = str(standin / TORCH_OF_PYTHONS / "lib")
    without_device = {"STANDIN_DEVICES": "0", "LD_LIBRARY_PATH": libraries}
    on_device = {"STANDIN_HOME": str(standin), "STANDIN_TORCH": TORCH_OF_PYTHONS}
    return {
        "bare": lambda: tested(sys.executable, wheel, "-k", "not dashboard", **variables),
        "dashboard": lambda: tested(sys.executable, wheel, "-k", "dashboard", **variables),
        "files": lambda: tested(with_torch(), *FILES, "-m", "not standin", **without_device),
        "simulated": lambda: tested(with_torch(), *SIMULATED, "-m", "not standin", **without_device),
        "truth": lambda: tested(with_torch(), *TRAININGS, **on_device),
        "commands": lambda: tested(with_torch(), *COMMANDS, "-m", "not standin", **without_device),
    }


def torch_cells(version: str) -> Cells:
    """Return what is run on one genuine allocator, by column."""
    from vramscope.prediction.dry.versions import CHECKED

    def cell(name: str, paths: tuple[str, ...]) -> dict[str, Any]:
        if name == "prediction" and version not in CHECKED:
            return {"missing": "no prediction is called checked there"}
        built = done(sys.executable, ROOT / "tests/standin/build.py", "--torch", version)
        launcher = built.stdout.strip().splitlines()[-1]
        asked = (*paths, "-m", "standin")
        if name == "prediction":  # a dry run is one of the torch that it runs with, and needs no device
            return tested(launcher, *asked, STANDIN_TORCH=version, STANDIN_DEVICES="0")
        return tested(sys.executable, *asked, STANDIN_TORCH=version)

    columns = TORCH_COLUMNS.items()
    return {name: lambda name=name, paths=paths: cell(name, paths) for name, (_, paths) in columns}


def tested(python: object, *words: str, **variables: str) -> dict[str, Any]:
    """Return how many tests passed, failed and were skipped, and the names of those that failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = ("-q", "-n", "0", "-o", "filterwarnings=default", f"--junitxml={report}")
        command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", *options, *words]
        ended = subprocess.run(command, cwd=ROOT, env=os.environ | variables, check=False)
        if not report.exists():
            return {"missing": f"pytest ended with {ended.returncode}"}
        return _counted(ET.parse(report).getroot())  # noqa: S314 pytest wrote it


def _counted(report: ET.Element) -> dict[str, Any]:
    cases = list(report.iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    n_skipped = sum(case.find("skipped") is not None for case in cases)
    names = sorted({f"{case.get('classname', '').rpartition('.')[2]}: {case.get('name')}" for case in failed})
    return {
        "passed": len(cases) - len(failed) - n_skipped,
        "failed": len(failed),
        "skipped": n_skipped,
        "names": names,
    }


def _version(python: object) -> str:
    return done(python, "-c", "import platform; print(platform.python_version())").stdout.strip()


# What is written

TEXT = """\
# Versions

Which tests passed on which Python and with which PyTorch: `make test-matrix` runs them and writes this page.
*Not run* is what nobody has seen. A skipped test needs what that version does not have.

## Python

The wheel is installed alone and with its dashboard: every command of the README prints what it prints on the
Python of the other tests, a page is written, and `serve` answers. Then the tests of analyses, files,
recording, commands and pages, with torch {torch_of_pythons}. Dry runs (`vramscope predict`) are tested on one
Python, that of the second table. 3.14 waits for an interpreter: the indexes that these runs may ask (PyPI,
Debian 12, npm) have none that loads torch.

{pythons}

## PyTorch

torch's genuine CUDA allocator of each version, over a stand-in for the driver: twelve trainings against
`memory_stats()`, what recording does and how it fails, snapshots of other programs, and dry runs against
genuine ones.

{torches}
{failures}"""


def page(results: Results) -> str:
    """Return the page: a table of Pythons, one of torches, and the tests that failed."""
    torch_titles = {name: title for name, (title, _) in TORCH_COLUMNS.items()}
    return TEXT.format(
        torch_of_pythons=TORCH_OF_PYTHONS,
        pythons=table("Python", results, PYTHONS, PYTHON_COLUMNS),
        torches=table("torch", results, TORCHES, torch_titles),
        failures=failures(results),
    )


def table(kind: str, results: Results, versions: Iterable[str], titles: Mapping[str, str]) -> str:
    """Return one table; a cell that never ran says so."""
    lines = [f"| {kind} | {' | '.join(titles.values())} | run |", "| --- " * (len(titles) + 2) + "|"]
    for version in versions:
        cells = results.get(f"{kind} {version}", {})
        days = sorted(cell["day"] for cell in cells.values())
        full = next((cell["on"] for cell in cells.values()), version)
        texts = [_cell(cells[name]) if name in cells else "not run" for name in titles]
        lines.append(f"| {full} | {' | '.join(texts)} | {days[0] if days else '–'} |")
    return "\n".join(lines)


def _cell(said: Mapping[str, Any]) -> str:
    if "missing" in said:
        return f"not run: {said['missing']}"
    counts = [(said["failed"], "failed"), (said["passed"], "passed"), (said["skipped"], "skipped")]
    return ", ".join(f"{n} {word}" for n, word in counts if n) or "0 passed"


def failures(results: Results) -> str:
    """Return a section that names every test that failed; nothing where all passed."""
    lines = [
        f"- {row}, {column}: {name}"
        for row, cells in results.items()
        for column, said in cells.items()
        for name in said.get("names", ())
    ]
    return "\n## What fails\n\n" + "\n".join(lines) + "\n" if lines else ""


# What was written before


def kept(text: str) -> Results:
    """Return the results that a page states; each has the day of its row."""
    results: Results = {}
    columns = {
        "Python": {title: name for name, title in PYTHON_COLUMNS.items()},
        "torch": {title: name for name, (title, _) in TORCH_COLUMNS.items()},
    }
    titles: list[str] = []
    for line in re.findall(r"^\| ([\w.].*) \|$", text, re.MULTILINE):
        full, *cells, day = line.split(" | ")
        if full in columns:
            kind, titles = full, cells
            continue
        row = f"{kind} {full if kind == 'torch' else '.'.join(full.split('.')[:2])}"
        results[row] = {
            columns[kind][title]: _said(cell) | {"on": full, "day": day}
            for title, cell in zip(titles, cells, strict=True)
            if title in columns[kind] and cell != "not run"
        }
    for row, column, name in re.findall(r"^- (.*?), (.*?): (.*)$", text, re.MULTILINE):
        results[row][column]["names"].append(name)
    return results


def _said(cell: str) -> dict[str, Any]:
    if cell.startswith("not run: "):
        return {"missing": cell.removeprefix("not run: ")}
    counts = {word: int(n) for n, word in (part.split() for part in cell.split(", "))}
    return {"passed": 0, "failed": 0, "skipped": 0} | counts | {"names": []}


if __name__ == "__main__":
    sys.exit(main())
