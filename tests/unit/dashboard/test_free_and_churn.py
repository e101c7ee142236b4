"""The largest free block over time, and what came from the driver in each step: as a count by hand says."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import plotly.utils
import pytest
from vramscope.dashboard.address import Address
from vramscope.dashboard.answers import ask_allowing_stale
from vramscope.dashboard.data import Data, View
from vramscope.dashboard.figures.churn import MOST_BARS, bars_of
from vramscope.dashboard.figures.free_blocks import kinds_of
from vramscope.dashboard.pages import Context, pages

from vramscope.analysis.churn import ChurnOverTime
from vramscope.model.marks import Steps
from vramscope.model.recording import Outcome
from vramscope.model.trace import Action

MIB = 1 << 20


@pytest.fixture
def grown(tmp_path: Path, open_program: Any) -> tuple[Data, View]:
    """Six steps; in step 2 a segment of 64 MiB comes, in step 4 it goes back."""
    program = open_program(tmp_path / "grown")
    program.begin()
    for number in range(6):
        if number == 2:
            program.event(Action.SEGMENT_ALLOC, 1 << 41, 64 * MIB)
        if number == 4:
            program.event(Action.SEGMENT_FREE, 1 << 41, 64 * MIB)
        program.step()
    program.writer.close(Outcome.FINISHED)
    data = Data(tmp_path)
    return data, data.view(Address(run=next(iter(data.runs.paths()))))


def shown(data: Data, view: View, **address: Any) -> str:
    page = next(page for page in pages() if page.name == "fragmentation")
    layout = page.layout(Context(data, Address(page.path, run=view.run_id, **address)))
    text = json.dumps(layout, cls=plotly.utils.PlotlyJSONEncoder, ensure_ascii=False)
    return text.replace("\u00a0", " ")  # as one reads it


def test_bars_hold_what_each_step_took_and_gave(grown: tuple[Data, View]) -> None:
    data, view = grown
    found = ask_allowing_stale(data, view, "churn")
    steps = view.recording.steps
    bars = bars_of(found.rows(found.step >= 0), steps)
    of = {int(number): row for row, number in enumerate(bars.index)}

    assert bars.per_bar == 1
    assert bars.came[of[2]] == 64 * MIB
    assert bars.went[of[4]] == 64 * MIB
    assert bars.instant.tolist() == steps.start_event.tolist()


def test_many_steps_share_bars_and_no_byte_is_lost() -> None:
    n_steps = 5 * MOST_BARS + 3
    rng = np.random.default_rng(4)
    columns = {name: rng.integers(0, 1 << 30, n_steps) for name in ChurnOverTime.DTYPES}
    found = ChurnOverTime.of(**(columns | {"step": np.arange(n_steps)}))
    times = {name: np.arange(n_steps) for name in Steps.DTYPES}
    bars = bars_of(found, Steps.of(**times))

    assert len(bars.index) <= MOST_BARS
    assert bars.came.sum() == found.made_bytes.sum()
    assert bars.went.sum() == found.released_bytes.sum()


def test_the_largest_free_block_is_drawn_for_each_kind_of_memory(grown: tuple[Data, View]) -> None:
    data, view = grown
    found = ask_allowing_stale(data, view, "largest_free")
    (kind,) = kinds_of(found, view.recording.pools)
    last = kind.rows[found.instant[kind.rows] == len(view.recording.trace)]

    assert kind.name == "large blocks"
    # Of 512 MiB the weights take 20, in the second stretch of 20: what follows them is the largest.
    assert found.free_bytes[last].tolist() == [492 * MIB]
    assert found.largest_bytes[last].tolist() == [472 * MIB]


def test_the_room_says_up_to_when_the_driver_was_asked(grown: tuple[Data, View]) -> None:
    text = shown(*grown)

    assert "nothing after step 4" in text
    assert "cudaMalloc / cudaFree per step" in text
    assert "Largest free block" in text


def test_where_the_driver_was_never_asked_in_a_step_there_is_no_chart(data: Data, view: View) -> None:
    text = shown(data, view)

    assert "cudaMalloc / cudaFree per step" not in text
    assert "Largest free block" in text
