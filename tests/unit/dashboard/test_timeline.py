"""The timeline in reports and notebooks: exact maxima, steps by their extremes where narrow, and small."""

import base64
import json
from typing import Any

import numpy as np
import pytest
from vramscope.dashboard.figures.drawing.series import (
    Curve,
    Flags,
    Series,
    Spans,
    phase_bands,
)
from vramscope.dashboard.figures.drawing.theme import pack
from vramscope.dashboard.figures.drawing.window import folded_start, window
from vramscope.dashboard.figures.timeline import QUANTITIES, figure
from vramscope.dashboard.figures.track import MOST_FLAGS

from vramscope.model.marks import MarkKind, Phase

NOTHING = Spans(np.zeros(0), np.zeros(0), np.zeros(0, "i8"), np.zeros(0, "i8"))


def unpack(column: Any) -> np.ndarray:
    if isinstance(column, dict):
        return np.frombuffer(base64.b64decode(column["bdata"]), column["dtype"]).astype("f8")
    return np.array(column, "f8")


def trace(drawn: list[dict[str, Any]], uid: str) -> tuple[np.ndarray, np.ndarray]:
    found = next(each for each in drawn if each["uid"] == uid)
    return unpack(found["x"]), unpack(found["y"])


def in_seconds(series: Series, shown: Any, at: int | None) -> list[dict[str, Any]]:
    """The traces of the figure, whose positions have the unit that its axis names."""
    drawn = figure(series, shown, at)
    unit_s = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}[drawn["layout"]["xaxis"]["ticksuffix"].strip()]
    return [each | {"x": pack(unpack(each["x"]) * unit_s)} for each in drawn["data"]]


def big(n: int, n_steps: int = 200, seed: int = 0) -> Series:
    """*n* events of a busy training, with everything an overview can show."""
    rng = np.random.default_rng(seed)
    position = np.concatenate([[0.0], np.cumsum(rng.exponential(2e-5, n))])
    allocated = (np.abs(np.cumsum(rng.integers(-40, 41, n + 1))) + 100_000) * 512 * 97
    active = allocated + rng.integers(0, 3, n + 1) * 512
    reserved = -(-np.maximum.accumulate(active) // (2 << 20)) * (2 << 20) + rng.integers(0, 2, n + 1) * (
        2 << 20
    )
    edges = np.linspace(0, position[-1], 3 * n_steps + 1)
    phases = Spans(edges[:-1], edges[1:], np.tile([1, 2, 3], n_steps), np.zeros(3 * n_steps, "i8"))
    steps = Spans(edges[:-1:3], edges[3::3], np.arange(n_steps), np.zeros(n_steps, "i8"))
    used = np.linspace(0, position[-1], 400)
    flags = Flags(used[:200], np.full(200, int(MarkKind.MARK)), tuple(["<b>mark</b>"] * 200))
    samples = Curve(used, rng.integers(10**9, 10**10, 400))
    return Series("time", position, allocated, active, reserved, samples, 80 << 30, phases, steps, flags)


def test_every_curve_fills_the_run_and_has_its_exact_maximum() -> None:
    series = big(50_000)
    drawn = in_seconds(series, QUANTITIES, 100)
    for each in drawn:
        x = unpack(each["x"])
        assert not len(x) or (np.nanmin(x) >= 0 and np.nanmax(x) <= series.extent[1])
    for name in ("allocated", "reserved"):
        x, y = trace(drawn, name)

        assert (x[0], x[-1]) == series.extent
        assert y.max() * (1 << 30) == getattr(series, name).max()


def test_samples_are_points_and_nothing_between_them() -> None:
    series = big(1000)
    drawn = in_seconds(series, QUANTITIES, None)
    x, y = trace(drawn, "device_used")

    assert next(each for each in drawn if each["uid"] == "device_used")["mode"] == "markers"
    assert x == pytest.approx(series.device_used.position)
    assert y * (1 << 30) == pytest.approx(series.device_used.value)


def test_steps_too_narrow_for_a_curve_are_drawn_by_their_least_and_greatest_levels() -> None:
    series = big(60_000, n_steps=250)
    drawn = in_seconds(series, QUANTITIES, None)
    names = [each["uid"] for each in drawn]
    (edges, high), (_, low) = trace(drawn, "allocated"), trace(drawn, "allocated-least")

    assert names.index("allocated") == names.index("allocated-least") + 1
    assert drawn[names.index("allocated")]["fill"] == "tonexty"
    assert set(series.steps.start) < set(edges)
    for i, start in enumerate(series.steps.start[1:-1], 1):
        inside = (series.position >= start) & (series.position < series.steps.end[i])
        entry = np.searchsorted(series.position, start, "left") - 1
        levels = [*series.allocated[inside], series.allocated[entry]]
        row = int(np.searchsorted(edges, start))

        assert (high[row] * (1 << 30), low[row] * (1 << 30)) == (max(levels), min(levels))


@pytest.mark.parametrize(
    ("start", "end"), [(None, None), (5.0, 1.0), (-9.0, -3.0), (float("inf"), None), (1e300, 1e301)]
)
def test_a_window_that_makes_no_sense_shows_everything(start: float | None, end: float | None) -> None:
    series = big(1000)

    assert window(series, start, end) == series.extent


def test_a_figure_of_two_million_events_is_small() -> None:
    drawn = in_seconds(big(2_000_000, n_steps=4), QUANTITIES, 7)

    assert len(json.dumps(drawn)) <= 300_000
    assert sum(len(unpack(each["x"])) for each in drawn) <= 13_000


def test_a_phase_is_a_line_with_a_gap_after_each_of_its_bands() -> None:
    series = big(1000, n_steps=3)
    x, y = trace(in_seconds(series, QUANTITIES, None), "phase1")
    mine = np.flatnonzero(series.phases.label == 1)

    assert x[0::3] == pytest.approx(series.phases.start[mine], abs=1e-9)
    assert x[1::3] == pytest.approx(series.phases.end[mine], abs=1e-9)
    assert np.isnan(x[2::3]).all()
    assert (y[0::3] == y[1::3]).all()
    assert not np.isnan(y[0::3]).any()


def test_the_lane_has_at_most_400_bands_and_12_names() -> None:
    series = big(1000, n_steps=5000)
    bands = phase_bands(series.phases, *series.extent)
    (names,) = [each for each in in_seconds(series, QUANTITIES, None) if each["uid"] == "stepnames"]

    assert 1 <= len(bands.phase) <= 400
    assert 1 <= len(names["text"]) <= 12


@pytest.mark.parametrize(("n_steps", "stride"), [(9, 1), (20, 2), (45, 5), (100, 10), (500, 50)])
def test_names_of_steps_are_multiples_of_an_even_number(n_steps: int, stride: int) -> None:
    (names,) = [
        each for each in in_seconds(big(1000, n_steps), QUANTITIES, None) if each["uid"] == "stepnames"
    ]
    numbers = [int(text.removeprefix("step ")) for text in names["text"]]

    assert np.diff(numbers).tolist() == [stride] * (len(numbers) - 1)
    assert all(number % stride == 0 for number in numbers)
    assert len(numbers) > 5


def test_inner_phases_override_outer_ones() -> None:
    phases = Spans(np.array([0.0, 2.0]), np.array([10.0, 4.0]), np.array([2, 4]), np.array([0, 1]))
    bands = phase_bands(phases, 0, 10)

    assert bands.edges.tolist() == [0, 2, 4, 10]
    assert bands.phase.tolist() == [Phase.BACKWARD, Phase.RECOMPUTE, Phase.BACKWARD]


def test_marks_are_shown_literally_and_not_without_end() -> None:
    signs = next(t for t in in_seconds(big(1000), QUANTITIES, None) if t["uid"] == "flags")

    assert len(signs["text"]) == MOST_FLAGS
    assert "<" not in "".join(signs["text"])


def test_a_recording_of_one_instant_can_be_drawn() -> None:
    one = np.array([5 << 20])
    nothing = Curve(np.zeros(0), np.zeros(0, "i8"))
    flags = Flags(np.zeros(0), np.zeros(0, "i8"), ())
    series = Series("events", np.zeros(1), one, one, one, nothing, 0, NOTHING, NOTHING, flags)
    x, y = trace(figure(series, QUANTITIES, 0)["data"], "allocated")

    assert (x[0], y[0]) == (0.0, 5.0)


@pytest.mark.parametrize("values", [[1, 2, 3], [0.5, 1e300], [2**53, 1], [np.nan, 1.0], [-1, 70_000], []])
def test_packing_loses_nothing(values: list[float]) -> None:
    column = np.array(values)

    assert np.array_equal(unpack(pack(column)), column.astype("f8"), equal_nan=True)


@pytest.mark.parametrize(
    ("position", "starts", "levels", "expected"),
    [
        ([0, 1, 90, 95, 100], [2], [1, 2, 1, 5, 3], 2),
        ([0, 1, 90, 95, 100], [2], [1, 6, 1, 5, 3], 0),
        ([0, 1, 10, 95, 100], [2], [1, 2, 1, 5, 3], 0),
        ([0, 1, 90, 95, 100], [0], [1, 2, 1, 5, 3], 0),
        ([7, 7, 7, 7, 7], [2], [1, 2, 1, 5, 3], 0),
        ([0, 50, 90, 95, 100], [1, 2, 3], [1, 5, 1, 5, 5], 2),
        ([0, 50, 90, 95, 100], [1, 2, 3], [1, 6, 1, 5, 5], 1),
        ([0, 50, 70, 90, 100], [1, 2, 3], [1, 5, 1, 5, 5], 1),
        ([0, 50, 90, 95, 100], [1, 2], [1, 5, 1, 5, 5], 1),
        ([0, 30, 90, 95, 100], [0, 1, 2], [1, 5, 1, 5, 5], 0),
        ([0, 60, 90, 95, 100], [0, 1, 2], [1, 5, 1, 5, 5], 1),
    ],
    ids=[
        "long loading", "highest while it loads", "short loading", "no loading", "no clock",
        "the first step compiles", "the first step is the highest", "steps alike", "two steps",
        "steps alike without loading", "the first step compiles without loading",
    ],
)  # fmt: skip
def test_a_run_opens_at_its_steps_where_loading_takes_a_fifth_and_not_the_peak(
    position, starts, levels, expected
):
    at, level = np.array(position, "f8"), np.array(levels)

    assert folded_start(at, starts, (level, level)) == expected


def test_a_run_whose_peak_lies_before_its_steps_opens_on_it_though_reserved_stays():
    at, levels = np.array([0, 1, 90, 100], "f8"), (np.array([1, 9, 3, 3]), np.array([9, 9, 9, 9]))

    assert folded_start(at, [2], levels) == 0


@pytest.mark.parametrize(
    ("last_s", "last"), [(0.02, (20.0, "ms")), (60.0, (60.0, "s")), (9000.0, (2.5, "h"))]
)
def test_time_has_the_unit_of_a_duration_of_that_length(last_s: float, last: tuple[float, str]) -> None:
    level, nothing = np.array([0, 512]), Curve(np.zeros(0), np.zeros(0, "i8"))
    flags = Flags(np.zeros(0), np.zeros(0, "i8"), ())
    times = np.array([0.0, last_s])
    series = Series("time", times, level, level, level, nothing, 0, NOTHING, NOTHING, flags)
    drawn = figure(series, ("allocated",), None)
    x, _ = trace(drawn["data"], "allocated")

    assert (x[-1], drawn["layout"]["xaxis"]["ticksuffix"].strip()) == (pytest.approx(last[0]), last[1])
    assert drawn["layout"]["xaxis"]["range"] == [0.0, pytest.approx(last[0])]
