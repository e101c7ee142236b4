"""Spans of phases and steps of a run that grows are those that are placed all at once."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from vramscope.dashboard.answers.growing_spans import GrowingSpans
from vramscope.dashboard.figures.drawing.series import EVENTS, TIME, Ruler, Spans, spans

from vramscope.columns.scratch import Scratch
from vramscope.model.marks import Phases

N_PHASES = 50_000
EACH = 10
"""Events of a phase."""


def ruler(axis: str, n_instants: int) -> Ruler:
    time_ns = 10**9 + 1000 * np.arange(n_instants)
    placed = np.arange(n_instants, dtype="f8") if axis == EVENTS else (time_ns - 10**9) / 1e9
    return Ruler(axis, time_ns, 10**9, placed)


def phases(n_rows: int) -> Phases:
    """Phases one after the other, some of them in the one before; the last ones are still open."""
    start = EACH * np.arange(n_rows)
    end = np.minimum(start + np.where(np.arange(n_rows) % 3, EACH, 3 * EACH), EACH * n_rows - 3)
    return Phases.of(
        phase=np.arange(n_rows) % 5,
        depth=np.arange(n_rows) % 2,
        start_event=start,
        end_event=end,
        start_ns=10**9 + 1000 * start,
        end_ns=10**9 + 1000 * end,
    )


def assert_same(found: Spans, table: Phases, placed: Ruler) -> None:
    truth = spans(table, table.phase, table.depth, placed)
    for name in ("start", "end", "label", "depth"):
        assert np.array_equal(getattr(found, name), getattr(truth, name)), name


@pytest.mark.parametrize("axis", [TIME, EVENTS])
def test_each_version_has_the_spans_of_the_whole_and_keeps_them(axis: str, tmp_path: Path) -> None:
    growing, seen = GrowingSpans(Scratch(tmp_path)), []
    for n_rows in (0, 1, 3, 70, 71, 900, 901, 20_000, 33_333, 33_334, N_PHASES):
        table, placed = phases(n_rows), ruler(axis, EACH * n_rows + 1)
        seen.append((growing.follow(table, table.phase, table.depth, placed), table, placed))

    for found, table, placed in seen:
        assert_same(found, table, placed)


def test_a_reader_of_an_older_version_gets_the_older_spans() -> None:
    growing = GrowingSpans()
    for n_rows in (500, 600, 700, 400, 800, 10, 900):
        table, placed = phases(n_rows), ruler(TIME, EACH * n_rows + 1)
        assert_same(growing.follow(table, table.phase, table.depth, placed), table, placed)


def test_phases_that_are_found_otherwise_are_placed_again() -> None:
    growing = GrowingSpans()
    for n_rows in (500, 600, 700):
        table, placed = phases(n_rows), ruler(TIME, EACH * n_rows + 1)
        growing.follow(table, table.phase, table.depth, placed)
    other = table.phase.copy()
    other[20] = 8
    changed = replace(table, phase=other)
    found = growing.follow(changed, changed.phase, changed.depth, placed)

    assert_same(found, changed, placed)
    assert_same(growing.follow(table, table.phase, table.depth, placed), table, placed)


def test_phases_of_a_clock_that_goes_back_are_in_order() -> None:
    growing = GrowingSpans()
    for n_rows in (500, 600, 700, 800):
        table, placed = phases(n_rows), ruler(TIME, EACH * n_rows + 1)
        start_ns = table.start_ns.copy()
        start_ns[650:] -= 10**6
        table = replace(table, start_ns=start_ns)
        assert_same(growing.follow(table, table.phase, table.depth, placed), table, placed)
