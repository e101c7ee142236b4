"""Steps side by side show their exact peaks; the stack of one adds up to what was allocated."""

import base64
from typing import Any

import numpy as np
import pytest
from vramscope.dashboard.figures import steps as figures

from vramscope.analysis.step_peaks import IntervalPeaks, StepPeaks
from vramscope.model.marks import Category, Phase


def values(packed: dict[str, str]) -> list[float]:
    return np.frombuffer(base64.b64decode(packed["bdata"]), packed["dtype"]).tolist()


def test_the_stack_adds_up_at_every_instant(view: Any) -> None:
    found, known = view.recording.lifetimes(), view.recording.categories()
    total = view.recording.timeline().allocated_bytes
    for start, end in ((0, len(total) - 1), (10, 30), (7, 7)):
        levels = figures.by_category(found, known.assigned.category, start, end)

        assert levels.sum(axis=0).tolist() == total[start : end + 1].tolist()
        assert (levels >= 0).all()


def test_an_instants_categories_are_those_of_the_analysis(view: Any) -> None:
    known = view.recording.categories(instant=20)
    levels = figures.by_category(view.recording.lifetimes(), known.assigned.category, 5, 40)

    assert levels[:, 15].tolist() == known.n_bytes.tolist()


@pytest.mark.parametrize("n_steps", [3, 5000])
def test_the_highest_step_is_drawn_however_many_there_are(n_steps: int) -> None:
    heights = np.random.default_rng(0).integers(1 << 20, 1 << 30, n_steps)
    found = StepPeaks(IntervalPeaks.of(allocated_bytes=heights))
    drawn = figures.peaks(found, np.arange(n_steps), int(heights.argmax()))
    whole = next(trace for trace in drawn["data"] if trace["uid"] == "allocated")

    assert max(values(whole["y"])) == heights.max()
    assert len(values(whole["y"])) <= 4 * figures.STEP_COLUMNS
    assert drawn["data"][-1]["x"] == [int(heights.argmax())]


def test_every_category_has_its_place_in_the_stack() -> None:
    assert sorted(figures.ORDER) == sorted(Category)


def test_one_step_is_drawn_without_steps_that_do_not_exist() -> None:
    drawn = figures.peaks(StepPeaks(IntervalPeaks.of(allocated_bytes=[5])), np.array([3]), 0)

    assert drawn["layout"]["xaxis"]["range"] == [2.5, 3.5]


def test_lines_that_lie_on_one_another_show_each_other() -> None:
    rows = {"step": [0, 0, 1, 1], "phase": [Phase.FORWARD, Phase.BACKWARD] * 2}
    per_phase = IntervalPeaks.of(allocated_bytes=[3 << 20, 9 << 20, 4 << 20, 9 << 20], **rows)
    found = StepPeaks(IntervalPeaks.of(allocated_bytes=[9 << 20, 9 << 20]), per_phase)
    dashes = {
        line["name"]: line["line"]["dash"] for line in figures.peaks(found, np.arange(2), 0)["data"][:3]
    }

    assert dashes["step"] == dashes["forward"] == "solid"
    assert dashes["backward"] != "solid"


def test_an_evaluation_between_two_steps_lies_between_them() -> None:
    per_step = IntervalPeaks.of(
        step=[0, 1], start_event=[10, 50], end_event=[30, 70], allocated_bytes=[5 << 20] * 2
    )
    outside = IntervalPeaks.of(start_event=[0, 30], end_event=[10, 50], allocated_bytes=[1 << 20, 8 << 20])
    drawn = figures.peaks(StepPeaks(per_step, outside=outside), np.array([7, 8]), None)
    (marks,) = (trace for trace in drawn["data"] if trace.get("uid") == "outside")

    assert values(marks["x"]) == [6.5, 7.5]
    assert values(marks["y"]) == [1 << 20, 8 << 20]
