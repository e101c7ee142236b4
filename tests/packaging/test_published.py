"""The table of published figures: each row has its source, and no verdict contradicts a measurement."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def published(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(BENCHMARKS / "published.py")


def test_every_row_has_a_figure_and_a_source(published: ModuleType) -> None:
    figures = json.loads(published.FIGURES.read_text())
    assert figures.keys() == {row.key for row in published.ROWS}
    assert len(figures) == len(published.ROWS) >= 25
    assert {row.source for row in published.ROWS} == published.SOURCES.keys()
    assert all(source.url.startswith("https://") and source.assumed for source in published.SOURCES.values())


def test_the_program_of_every_row_is_there(published: ModuleType) -> None:
    text = (BENCHMARKS / "_published_program.py").read_text()
    for row in published.ROWS:
        assert f"def {row.options['program']}(" in text


def test_no_verdict_contradicts_a_page(published: ModuleType) -> None:
    figures = json.loads(published.FIGURES.read_text())
    assert [row.key for row in published.ROWS if published.is_false(row, figures[row.key])] == []


def test_enough_figures_are_met_and_the_others_are_explained_or_said_not_to_be(published: ModuleType) -> None:
    figures = json.loads(published.FIGURES.read_text())
    rows = [row for row in published.ROWS if row.published is not None]
    off = {row.key: row.off_percent(figures[row.key]) for row in rows}
    assert sum(abs(value) <= 2 for value in off.values()) >= 18
    explained = {row.key for row in published.ROWS if row.why}
    assert {key for key, value in off.items() if abs(value) > 5} <= explained


def test_the_page_is_what_the_figures_make(published: ModuleType) -> None:
    assert published.PAGE.read_text() == published.page(json.loads(published.FIGURES.read_text()))
