"""Why reserved memory rose, by whose requests, and the calls under the timeline: as counted by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vramscope.dashboard.address import Address
from vramscope.dashboard.answers import series_of
from vramscope.dashboard.components.panels import reserved
from vramscope.dashboard.data import Data, View
from vramscope.dashboard.figures.composition import MOST_CALLS, calls_of_driver
from vramscope.dashboard.figures.drawing.series import EVENTS
from vramscope.dashboard.figures.drawing.window import window

from vramscope.model.recording import Outcome
from vramscope.model.trace import Action

MIB = 1 << 20


@pytest.fixture
def grown(tmp_path: Path, open_program: Any) -> tuple[Data, View]:
    """Six steps; in step 2 a segment of 64 MiB comes for a request of 60, in step 4 it goes back."""
    program = open_program(tmp_path / "grown")
    program.begin()
    for number in range(6):
        if number == 2:
            program.event(Action.SEGMENT_ALLOC, 1 << 41, 64 * MIB, program.stack("evaluate", 77))
            program.free(program.malloc(60 * MIB, program.stack("evaluate", 77)))
        if number == 4:
            program.event(Action.SEGMENT_FREE, 1 << 41, 64 * MIB)
        program.step()
    program.writer.close(Outcome.FINISHED)
    data = Data(tmp_path)
    return data, data.view(Address(run=next(iter(data.runs.paths()))))


def said(data: Data, view: View, at: int | None) -> str:
    return " | ".join(reserved.jump_fields(data, view, at).values())


def test_the_largest_jump_of_the_training_is_explained_first(grown: tuple[Data, View]) -> None:
    data, view = grown
    words = said(data, view, None)

    assert "step 2" in words
    assert "cudaMalloc reserved 64.0 MiB for 60.0 MiB requested by evaluate (me/model.py:77)" in words
    assert words.endswith("Step 2 reserved 64.0 MiB in 1 call.")


def test_at_an_instant_it_is_the_last_call_before(grown: tuple[Data, View]) -> None:
    data, view = grown

    assert "reserved 512 MiB for 20.0 MiB requested" in said(data, view, 5)
    assert "64.0 MiB" in said(data, view, len(view.recording.trace))


def test_the_tables_have_every_call_and_whose_request_it_was(grown: tuple[Data, View]) -> None:
    lines, calls = reserved.rows(*grown)

    assert [(row["size"], row["call"], row["asked"]) for row in calls] == [
        (512 * MIB, "cudaMalloc", 20 * MIB), (64 * MIB, "cudaMalloc", 60 * MIB), (64 * MIB, "cudaFree", None),
    ]  # fmt: skip
    assert min((row["size"], row["steps"]) for row in lines) == (64 * MIB, "step 2")
    assert sum(row["size"] for row in lines) == 576 * MIB


def test_marks_that_share_a_column_lose_no_byte(grown: tuple[Data, View]) -> None:
    data, view = grown
    series, calls = series_of(data, view, EVENTS), data.ask(view, "driver_calls")
    whole = window(series, None, None)
    for width in (1, 7, 2000):
        drawn = calls_of_driver(series, calls, whole, width)
        assert int(drawn["driver.came"].sum()) == 576 * MIB
        assert int(drawn["driver.went"].sum()) == 64 * MIB
        assert len(drawn["driver.x"]) <= min(width + 2, MOST_CALLS + 2)
    assert np.array_equal(drawn["driver.x"], calls.event)


def test_a_run_without_calls_has_no_panel(tmp_path: Path, open_program: Any) -> None:
    program = open_program(tmp_path / "none")
    program.malloc(MIB)
    program.flush()
    program.writer.close(Outcome.FINISHED)
    data = Data(tmp_path)
    view = data.view(Address(run=next(iter(data.runs.paths()))))

    assert reserved.layout(data, view, None) == []
