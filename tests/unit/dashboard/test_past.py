"""Steps whose events a size cap took: shown by their exact peaks, and nothing is guessed beyond."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import plotly.utils
import pytest
from vramscope.dashboard.address import Address
from vramscope.dashboard.components.panels.past import _of_samples, steps_with_past
from vramscope.dashboard.data import Data, View
from vramscope.dashboard.pages import Context, pages, phases
from vramscope.dashboard.queries.headline import claim, headline
from vramscope.dashboard.queries.run_summaries import summarize

from vramscope.model.counters import Counters
from vramscope.model.marks import MarkKind, Marks, Phases, Steps
from vramscope.model.recording import Recording

MIB = 1 << 20
# 20 MiB of weights, 200 from before step 8 until step 9 has begun, 8 of 8 MiB each, and the first gradient.
HIGHEST, NEXT, USUAL = (20 + 200 + 64 + 2) * MIB, (20 + 200) * MIB, (20 + 64 + 2) * MIB


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, thinned: Callable[..., Path]) -> Path:
    """The folder of one run, which no test changes."""
    return thinned(tmp_path_factory.mktemp("past") / "long").parent


@pytest.fixture
def capped(folder: Path) -> tuple[Data, View]:
    data = Data(folder)
    return data, data.view(Address(run=next(iter(data.runs.paths()))))


def shown(name: str, data: Data, view: View, **address: Any) -> str:
    page = next(page for page in pages() if page.name == name)
    layout = page.layout(Context(data, Address(page.path, run=view.run_id, **address)))
    text = json.dumps(layout, cls=plotly.utils.PlotlyJSONEncoder, ensure_ascii=False)
    return text.replace("\u00a0", " ")  # as one reads it


def test_every_step_has_its_exact_peak(capped: tuple[Data, View]) -> None:
    found = steps_with_past(*capped)
    peaks = found.found.per_step.allocated_bytes.tolist()

    assert 8 < found.n_thinned < 120
    assert found.index.tolist() == list(range(120))
    assert peaks == [{8: HIGHEST, 9: NEXT}.get(number, USUAL) for number in range(120)]


def test_the_headline_names_the_highest_step_though_its_events_are_gone(capped: tuple[Data, View]) -> None:
    assert claim(*capped) == "Peak 286 MiB in step 8"
    assert "the highest since is 86.0 MiB at" in headline(*capped).support
    assert "of that was allocated by Attention.forward" in headline(*capped).support


def test_the_list_of_runs_counts_all_steps_and_knows_the_highest(capped: tuple[Data, View]) -> None:
    data, view = capped
    line = summarize(data, view.run_id)

    assert line.n_steps == 120
    assert line.peak_allocated_bytes == HIGHEST


def test_time_goes_on_counting_from_the_first_step(capped: tuple[Data, View]) -> None:
    data, view = capped
    first = view.recording.steps.start_ns[0] - view.recording.past.steps.start_ns[0]

    assert first > 0
    assert "exact peaks, no allocations" in shown("phases", data, view)
    assert "no allocations retained" in shown("overview", data, view)


def test_a_step_without_detail_has_its_phases_and_says_what_is_not_known(capped: tuple[Data, View]) -> None:
    data, view = capped
    past = view.recording.past
    text = shown("phases", data, view, at=int(past.steps.start_event[8]) - past.n_events)

    assert "Step 8 needed most: 286 MiB, in backward" in text
    assert "Step 8 by phase" in text
    assert "Not retained" in text


def test_the_first_step_with_its_detail_is_looked_into(capped: tuple[Data, View]) -> None:
    data, view = capped
    number = len(view.recording.past.steps)
    text = shown("phases", data, view, at=1)

    assert f"Anatomy of step {number}, by category" in text
    assert "Not retained" not in text
    assert "first step with retained allocations" in text


def test_a_step_that_every_leaves_out_is_not_shown_by_what_stands_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_at: Any
) -> None:
    run_at("run", steps=4)
    data = Data(tmp_path)
    view = data.view(Address(run=next(iter(data.runs.paths()))))
    steps = view.recording.steps
    marks = Marks.of(
        kind=[MarkKind.EVENTS] * 2, event=[steps.start_event[2], steps.end_event[2]], value=[0, 1],
        time_ns=[steps.start_ns[2], steps.end_ns[2]],
    )  # fmt: skip
    left_out = replace(view, recording=replace(view.recording, marks=marks))
    monkeypatch.setattr(phases, "_rose", lambda _data, _view, row, other: (other, row))
    inside = json.dumps(phases._details(data, left_out, 2, "previous")[0], cls=plotly.utils.PlotlyJSONEncoder)

    assert "every= left its events out" in inside
    assert phases._details(data, left_out, 3, "previous")[1] == (1, 3)
    assert phases._details(data, left_out, 3, "first")[1] == (0, 3)
    assert phases._details(data, view, 3, "previous")[1] == (2, 3)


def test_peaks_of_samples_have_each_phase_of_a_step_once() -> None:
    found = _of_samples(
        Recording(
            source="counters",
            counters=Counters.of(time_ns=[1, 2, 3, 4, 5, 8], allocated_bytes=[1, 5, 2, 9, 3, 4]),
            steps=Steps.of(index=[6, 7, 8], start_ns=[1, 6, 8], end_ns=[5, 7, 9]),
            phases=Phases.of(phase=[1, 2, 1], step=[0, 0, 0], start_ns=[1, 2, 3], end_ns=[2, 3, 4]),
        )
    )

    assert found.index.tolist() == [6, 8]  # no sample lies in step 7
    assert found.found.per_step.allocated_bytes.tolist() == [9, 4]
    rows = found.found.per_phase
    assert list(zip(rows.step, rows.phase, rows.allocated_bytes, strict=True)) == [(0, 1, 9), (0, 2, 5)]
