"""The timeline's columns: exact extremes at every zoom, steps by their extremes where they are narrow."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from vramscope.dashboard.figures import composition, track
from vramscope.dashboard.figures.drawing import envelope
from vramscope.dashboard.figures.drawing.series import Curve, Flags, Series, Spans
from vramscope.dashboard.figures.drawing.window import window

from vramscope.analysis.fragmentation import Parts
from vramscope.model.marks import MarkKind

WIDTH = 900


def series_of(n: int, n_steps: int) -> Series:
    """Return *n* events of a busy training with *n_steps* steps of uneven length and pauses between them."""
    rng = np.random.default_rng(3)
    position = np.concatenate([[0.0], np.cumsum(rng.exponential(2e-5, n))])
    allocated = (np.abs(np.cumsum(rng.integers(-40, 41, n + 1))) + 10_000) * 512
    reserved = np.maximum.accumulate(allocated) + (2 << 20)
    borders = np.sort(rng.uniform(0, position[-1], 2 * n_steps))
    steps = Spans(borders[::2], borders[1::2], np.arange(n_steps), np.zeros(n_steps, "i8"))
    samples = Curve(np.sort(rng.uniform(0, position[-1], 90)), rng.integers(10**9, 10**10, 90))
    flags = Flags(borders[:200], np.full(200, int(MarkKind.MARK)), tuple(["<b>mark</b>"] * 200))
    return Series("time", position, allocated, allocated, reserved, samples, 80 << 30, steps, steps, flags)


def level_at(series: Series, x: float) -> int:
    return int(series.allocated[max(int(np.searchsorted(series.position, x, "right")) - 1, 0)])


@pytest.mark.parametrize("n_steps", [100, 4000])
def test_the_maximum_is_exact_in_forty_random_windows(n_steps: int) -> None:
    series, rng = series_of(60_000, n_steps), np.random.default_rng(5)
    for _ in range(40):
        view = window(series, *np.sort(rng.uniform(0, series.extent[1], 2)))
        made = track.track(series, view, WIDTH).columns
        x, y = made["allocated.x"], made["allocated.y"]
        shown = y[(x >= view.start) & (x <= view.end)].max()
        inside = (series.position > view.start) & (series.position <= view.end)
        exact = max(series.allocated[inside].max(initial=0), level_at(series, view.start))

        assert shown == exact


def test_steps_that_are_narrow_are_drawn_by_their_extremes() -> None:
    series = series_of(60_000, 200)
    view = window(series, None, None)
    made = track.track(series, view, WIDTH)
    columns: Any = made.columns
    x, high, low = columns["allocated.x"], columns["allocated.y"], columns["allocated.low"]
    assert made.facts["envelope"]
    assert high.max() == series.allocated.max()
    for i, (start, end) in enumerate(pairwise(x)):
        inside = (series.position >= start) & (series.position < end)
        levels = [*series.allocated[inside].tolist(), level_at(series, np.nextafter(start, -1))]

        # The last interval has its end as well.
        levels += [level_at(series, end)] if i == len(x) - 2 else []
        assert (high[i], low[i]) == (max(levels), min(levels))
        assert series.allocated[columns["allocated.i"][i]] == high[i]


def test_borders_of_an_envelope_are_those_of_steps_and_split_wide_pauses() -> None:
    series = series_of(20_000, 150)
    x = track.track(series, window(series, None, None), WIDTH).columns["allocated.x"]
    of_steps = np.concatenate(
        [[0.0], np.sort(np.r_[series.steps.start, series.steps.end]), series.extent[1:]]
    )
    pixel = series.extent[1] / WIDTH
    gap = np.diff(of_steps)[np.searchsorted(of_steps, x[1:-1], "right") - 1]
    is_of_step = np.isin(x[1:-1], of_steps)

    assert (is_of_step | (gap >= envelope.WIDE_PX * pixel)).all()
    assert np.diff(x).max() < envelope.WIDE_PX * pixel


def test_steps_in_a_small_part_of_the_axis_are_drawn_by_their_extremes_and_the_rest_in_detail() -> None:
    busy = series_of(60_000, 20)
    series = replace(busy, steps=squeezed(busy.steps, 5 / 6, 1 / 6))
    made = track.track(series, window(series, None, None), WIDTH)
    x = made.columns["allocated.x"]
    steps, pixel = series.steps, series.extent[1] / WIDTH
    within = np.isin(x, np.concatenate([steps.start, steps.end]))

    assert made.facts["envelope"]
    assert within.sum() == 40
    assert np.diff(x[x < steps.start[0]]).max() < 2 * envelope.INTERVAL_PX * pixel


def test_a_long_step_among_narrow_ones_is_drawn_in_detail() -> None:
    busy = series_of(60_000, 20)
    few = squeezed(busy.steps, 5 / 6, 1 / 6)
    long = busy.extent[1] * np.array([0.2, 0.7])
    both = Spans(np.r_[long[:1], few.start], np.r_[long[1:], few.end], np.arange(21), np.zeros(21, "i8"))
    series = replace(busy, steps=both)
    view = window(series, None, None)

    assert envelope.narrow_steps(series, view, WIDTH).tolist() == list(range(1, 21))
    x = track.track(series, view, WIDTH).columns["allocated.x"]
    assert np.count_nonzero((x > long[0]) & (x < long[1])) > 0.4 * WIDTH / envelope.INTERVAL_PX


def parts_of(series: Series) -> Parts:
    """Return parts of reserved bytes with some fragmentation in every second step."""
    split = np.random.default_rng(11).integers(0, 1 << 20, len(series.position))
    split[np.searchsorted(series.steps.start, series.position, "right") % 2 == 0] = 0
    nothing = np.zeros(len(split), "i8")
    return Parts.of(
        requested_bytes=series.allocated,
        rounding_bytes=nothing,
        pending_bytes=nothing,
        inactive_split_bytes=split,
        releasable_bytes=series.reserved - series.allocated - split,
        reserved_bytes=series.reserved,
        time_ns=nothing,
    )


def test_of_narrow_steps_the_areas_show_the_most_fragmented_instant_or_that_of_most_allocated() -> None:
    series = series_of(60_000, 200)
    parts = parts_of(series)
    made = composition.columns(series, parts, window(series, None, None), WIDTH)
    x, pixel = made["part.x"], series.extent[1] / WIDTH
    shown = track.track(series, window(series, None, None), WIDTH).columns["allocated.x"]

    assert set(x) < set(shown)
    assert len(x) < 0.5 * len(shown)
    assert np.diff(x).max() < composition.PX_OF_STEPS * 2 * pixel
    # The last interval includes its end, and is like the others otherwise.
    for i, (start, end) in enumerate(pairwise(x[:-1])):
        rows = np.flatnonzero((series.position >= start) & (series.position < end))
        if series.position[rows[:1]] != start:
            rows = np.append(max(int(np.searchsorted(series.position, start)) - 1, 0), rows)
        unusable = parts.inactive_split_bytes[rows]
        best = rows[unusable.argmax() if unusable.max() else series.allocated[rows].argmax()]

        assert made["part.inactive_split"][i] == parts.inactive_split_bytes[best]
        assert made["part.requested"][i] == series.allocated[best]
        assert sum(made[f"part.{name}"][i] for name in composition.PARTS) == series.reserved[best]


def test_the_areas_of_wide_steps_have_the_extremes_of_every_view() -> None:
    series, rng = series_of(300_000, 4), np.random.default_rng(5)
    parts = parts_of(series)
    for _ in range(20):
        view = window(series, *np.sort(rng.uniform(0, series.extent[1], 2)))
        made = composition.columns(series, parts, view, WIDTH)
        around = track.padded(series, view)
        inside = (series.position > around.start) & (series.position <= around.end)

        assert made["part.inactive_split"].max() == parts.inactive_split_bytes[inside].max()
        total = sum(made[f"part.{name}"] for name in composition.PARTS)
        assert total.max() == max(series.reserved[inside].max(), total[0])


def squeezed(steps: Spans, begin: float, share: float) -> Spans:
    """Return *steps* in a *share* of the axis that begins at *begin*, one after the other and alike."""
    last = float(steps.end[-1])
    edges = last * (begin + share * np.linspace(0, 1, len(steps.start) + 1))
    return Spans(edges[:-1], edges[:-1] + 0.9 * np.diff(edges), steps.label, steps.depth)


def test_few_steps_are_drawn_as_curves_that_fill_the_view_and_a_little_more() -> None:
    series = series_of(60_000, 20)
    view = window(series, 0.3, 0.4)
    made = track.track(series, view, WIDTH)
    x = made.columns["allocated.x"]

    assert not made.facts["envelope"]
    assert (x[0], x[-1]) == pytest.approx((0.275, 0.425))
    assert view.start in x
    assert view.end in x
    assert (np.diff(x) >= 0).all()
    assert len(x) < 4 * WIDTH * (1 + 2 * track.PAD) + 20


def test_samples_are_sent_as_they_are() -> None:
    series = series_of(5000, 10)
    made = track.track(series, window(series, None, None), WIDTH).columns

    assert made["device_used.x"].tolist() == series.device_used.position.tolist()
    assert made["device_used.y"].tolist() == series.device_used.value.tolist()


def test_what_is_sent_does_not_grow_with_the_recording() -> None:
    sizes = [
        sum(each.nbytes for each in track.track(s, window(s, None, None), WIDTH).columns.values())
        for s in (series_of(50_000, 100), series_of(400_000, 3000))
    ]

    assert max(sizes) < 200_000
