"""Steps side by side show their exact peaks; the stack of one adds up to what was allocated."""

import base64
from typing import Any

import numpy as np
import pytest
from vramscope.dashboard.components.panels.past import AllSteps
from vramscope.dashboard.figures import anatomy
from vramscope.dashboard.figures import steps as figures
from vramscope.dashboard.figures.anatomy import ModuleColumn
from vramscope.dashboard.pages import phases

from vramscope.analysis.step_peaks import IntervalPeaks, StepPeaks
from vramscope.model.marks import Category, Phase, Phases

MIB = 1 << 20


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


@pytest.mark.parametrize("is_lower_bound", [True, False])
def test_what_samples_say_of_a_step_is_called_at_least(view: Any, is_lower_bound: bool) -> None:
    columns = {"step": [0, 1, 2], "allocated_bytes": [5 << 20] * 3, "is_lower_bound": [False] * 3}
    columns["is_lower_bound"][1] = is_lower_bound
    per_phase = IntervalPeaks.of(phase=[Phase.FORWARD] * 3, **columns)
    known = AllSteps(StepPeaks(IntervalPeaks.of(**columns), per_phase), np.arange(3), 0)
    drawn = figures.peaks(known.found, known.index, None)
    words = str([phases._opening(view, known), phases._phases_of(known, 1), drawn["data"][0]["name"]])

    assert words.count("at least") == 3 * is_lower_bound
    # Whether the last step is as high as that one is then unknown.
    assert ("as high as" in words) != is_lower_bound


def test_an_evaluation_between_two_steps_lies_between_them() -> None:
    per_step = IntervalPeaks.of(
        step=[0, 1], start_event=[10, 50], end_event=[30, 70], allocated_bytes=[5 << 20] * 2
    )
    outside = IntervalPeaks.of(start_event=[0, 30], end_event=[10, 50], allocated_bytes=[1 << 20, 8 << 20])
    drawn = figures.peaks(StepPeaks(per_step, outside=outside), np.array([7, 8]), None)
    (marks,) = (trace for trace in drawn["data"] if trace.get("uid") == "outside")

    assert values(marks["x"]) == [6.5, 7.5]
    assert values(marks["y"]) == [1 << 20, 8 << 20]


PHASES = Phases.of(
    phase=[Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.RECOMPUTE, Phase.OPTIMIZER],
    start_event=[10, 20, 22, 25, 40],
    end_event=[20, 22, 40, 30, 45],
    depth=[0, 0, 0, 1, 0],
)
"""A step in which module b runs after a in forward, and before it in backward, which recomputes something."""
BORN, MODULES = np.array([10, 11, 12, 15, 20, 23, 26, 31, 41]), ["a", "", "a", "b", "", "b", "b", "a", ""]


def test_each_module_of_each_phase_has_a_column_in_the_order_in_which_they_run() -> None:
    found = anatomy.columns(PHASES, 9, 46, BORN, MODULES)

    assert [(each.name, each.phase, each.start) for each in found] == [
        ("a", Phase.FORWARD, 9),
        ("b", Phase.FORWARD, 15),
        ("loss", Phase.LOSS, 20),
        ("b", Phase.BACKWARD, 22),
        ("a", Phase.BACKWARD, 31),
        ("optimizer", Phase.OPTIMIZER, 40),
    ]
    empty = Phases.of(phase=[1, 2], start_event=[10, 10], end_event=[10, 40], depth=[0, 0])
    assert [each.phase for each in anatomy.columns(empty, 10, 46, BORN, MODULES)] == [2, 2]
    many = [f"m.{i}" for i in range(len(BORN) * 20)]
    assert anatomy.columns(PHASES, 9, 200, np.arange(10, 190), many) == []


def test_columns_say_what_they_change_and_lie_above_their_phases() -> None:
    found = anatomy.columns(PHASES, 9, 46, BORN, MODULES)
    allocated = np.arange(9, 47) * MIB  # 1 MiB more with each instant
    axis = anatomy.axis(found, np.array([9, 15, 20, 22, 31, 40, 47]), allocated)

    assert axis["ticktext"][:3] == ["a +6.00 MiB", "b +5.00 MiB", "loss +2.00 MiB"]
    assert [(band["label"]["text"], band["x0"], band["x1"]) for band in anatomy.bands(found)] == [
        ("forward", 0, 2),
        ("", 2, 3),
        ("backward", 3, 5),
        ("", 5, 6),
    ]


def test_areas_are_named_with_their_highest_bytes_and_as_multiples_of_the_parameters() -> None:
    levels = [
        (Category.PARAMETER, np.array([10, 10, 10]) * MIB),
        (Category.OPTIMIZER_STATE, np.array([20, 20, 20]) * MIB),
        (Category.GRADIENT, np.array([0, 5 * MIB, 10 * MIB + 512])),
        (Category.ACTIVATION, np.array([0, 20, 4]) * MIB),
    ]

    assert list(anatomy.highest(levels).values()) == [
        "10.0 MiB",
        "20.0 MiB = 2 × parameters",
        "10.0 MiB ≈ parameters",
        "20.0 MiB",
    ]


BLOCKS = [f"blocks.{i}.{part}" for i in range(3) for part in ("attn", "mlp")]


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        ([1, 2, 1, 2, 2, 1], "3 × 3.00 MiB in blocks.*"),
        ([1, 2, 1, 2, 2, 2], ""),
        ([0, 0, 0, 0, 0, 0], ""),
    ],
    ids=["like blocks", "blocks that differ", "blocks that keep nothing"],
)
def test_like_blocks_are_counted_with_what_each_adds_to_the_activations(gains: list[int], said: str) -> None:
    found = [ModuleColumn(name, Phase.FORWARD, at) for at, name in enumerate(["embed", *BLOCKS])]
    found.append(ModuleColumn("blocks.0.attn", Phase.BACKWARD, 7))
    levels = np.cumsum([0, 5, *gains, -4]) * MIB

    assert anatomy.of_blocks(found, np.arange(9), levels) == said


def test_the_stack_by_module_has_the_exact_highest_level_and_each_column_its_room(view: Any) -> None:
    lives, known = view.recording.lifetimes(), view.recording.categories()
    total = view.recording.timeline().allocated_bytes
    start, end = 10, 40
    found = [
        ModuleColumn("a", Phase.FORWARD, 10),
        ModuleColumn("b", Phase.FORWARD, 12),
        ModuleColumn("c", Phase.BACKWARD, 30),
    ]
    drawn = figures.stack(lives, known.assigned.category, (start, end), total, found)
    x = values(drawn["data"][0]["x"])
    tops = np.sum([values(trace["y"]) for trace in drawn["data"]], axis=0)

    assert tops.max() == total[start : end + 1].max()
    assert x == sorted(x)
    assert (x[0], x[-1] < 3) == (0.0, True)
    assert {0.0, 1.0, 2.0} <= set(np.round(x, 6))
    assert [tops[x.index(each)] for each in (0.0, 1.0, 2.0)] == [total[10], total[12], total[30]]
