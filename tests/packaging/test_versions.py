"""What is promised is what the table of versions has seen: classifiers, README, and the code's own list."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import tomllib
from canary import differences
from versions import PYTHONS, TORCHES, after, kept, page

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
README = (ROOT / "README.md").read_text(encoding="utf-8")


def rows(section: str) -> dict[str, list[str]]:
    """The cells of a table by the version that a row begins with, without the day."""
    text = TABLE.split(f"## {section}\n")[1].split("\n## ")[0]
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if re.match(r"\| \d", line)]
    return {row[0]: row[1:-1] for row in cells}


def seen(section: str) -> list[str]:
    """The versions of which the first column, at least, was run and passed."""
    return [version for version, cells in rows(section).items() if re.match(r"\d+ passed", cells[0])]


def minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def test_the_classifiers_are_the_pythons_that_were_seen() -> None:
    prefix = "Programming Language :: Python :: "
    stated = [line.removeprefix(prefix) for line in PROJECT["project"]["classifiers"] if prefix in line]

    assert [version for version in stated if version != "3"] == [minor(version) for version in seen("Python")]
    assert "Typing :: Typed" in PROJECT["project"]["classifiers"]


def test_the_lowest_python_is_the_one_that_types_and_names_are_checked_for() -> None:
    lowest = minor(seen("Python")[0])

    assert PROJECT["project"]["requires-python"] == f">={lowest}"
    assert PROJECT["tool"]["mypy"]["python_version"] == lowest
    assert PROJECT["tool"]["ruff"]["target-version"] == f"py{lowest.replace('.', '')}"


def test_the_readme_states_the_versions_that_were_seen() -> None:
    pythons, torches = seen("Python"), seen("PyTorch")

    assert f"Python {minor(pythons[0])} to {minor(pythons[-1])}" in README
    assert f"PyTorch {minor(torches[0])} to {minor(torches[-1])}" in README


def test_the_torches_of_the_table_are_those_that_the_code_calls_checked() -> None:
    private_functions = pytest.importorskip("vramscope.capture.torch_versions.private_functions")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    assert private_functions.CHECKED == TORCHES == tuple(rows("PyTorch"))
    assert re.search(r"^TORCHES \?= (.*)$", makefile, re.MULTILINE)[1].split() == list(TORCHES)
    assert re.search(r"^NEWEST_TORCH \?= (.*)$", makefile, re.MULTILINE)[1] == TORCHES[-1]


def test_the_page_says_what_was_not_run_and_what_failed() -> None:
    bare = {"on": "3.10.13", "day": "2026-11-25", "passed": 7, "failed": 1, "skipped": 2, "names": ["a: b"]}
    gone = {"on": "3.14", "day": "2026-11-25", "missing": "the machine has none"}
    written = page({"Python 3.10": {"bare": bare}, "Python 3.14": {"bare": gone}})
    lines = written.splitlines()

    assert next(line for line in lines if line.startswith("| 3.10.13 ")).startswith(
        "| 3.10.13 | 1 failed, 7 passed, 2 skipped | not run | "
    )
    assert any(line.startswith("| 3.14 | not run: the machine has none | ") for line in lines)
    assert sum(line.startswith("| 3.") for line in lines) == len(PYTHONS)
    assert "- Python 3.10, bare: a: b" in lines


def test_the_canary_names_what_is_gone_and_what_is_new() -> None:
    before = {"_snapshot": "()", "_old": "(a)", "same": ""}
    now = {"_snapshot": "(pool)", "same": "", "_new": ""}

    assert list(differences(before, now)) == ["+ _new", "- _old (a)", "- _snapshot ()", "+ _snapshot (pool)"]


def test_what_the_page_says_stays_until_it_is_run_again() -> None:
    counts = {"passed": 7, "failed": 1, "skipped": 0, "names": ["a: b[c, d]"]}
    bare = {"on": "3.10.13", "day": "2026-11-25"} | counts
    gone = {"on": "3.14", "day": "2026-11-26", "missing": "the machine has none, and no index"}
    none = {"on": "2.6.0", "day": "2026-11-25", "passed": 0, "failed": 0, "skipped": 0, "names": []}
    results = {"Python 3.10": {"bare": bare}, "Python 3.14": {"files": gone}, "torch 2.6.0": {"others": none}}
    again = kept(page(results))

    assert {row: cells for row, cells in again.items() if cells} == results
    assert page(kept(TABLE)) == TABLE


def test_predictions_are_called_checked_on_the_versions_that_were_measured() -> None:
    checked = pytest.importorskip("vramscope.prediction.dry.versions").CHECKED
    measured = (ROOT / "benchmarks" / "PREDICTION.md").read_text(encoding="utf-8")
    prediction = (ROOT / "docs" / "prediction.md").read_text(encoding="utf-8")

    assert {*checked} <= {*TORCHES}
    assert all(f"torch {version}\n" in measured for version in checked)
    assert f"| {', '.join(checked)} | `checked`" in prediction
    assert f"was checked on {', '.join(checked[:-1])} and {checked[-1]}, not on this version" in prediction


def test_what_failed_runs_again_alone_and_the_others_keep_their_results() -> None:
    before = {"passed": 9, "failed": 2, "skipped": 1, "names": ["a: test_b[c]", "a: test_d"]}
    asked = []

    def run() -> dict[str, Any]:
        asked.append(os.environ["PYTEST_ADDOPTS"])
        return {"passed": 4, "failed": 1, "skipped": 0, "names": ["a: test_d"]}

    assert after(before, run) == {"passed": 10, "failed": 1, "skipped": 1, "names": ["a: test_d"]}
    assert asked == ["-k 'test_b or test_d'"]
    with pytest.raises(AssertionError, match="did not run again"):
        after(before, lambda: {"passed": 0, "failed": 0, "skipped": 0, "names": []})
