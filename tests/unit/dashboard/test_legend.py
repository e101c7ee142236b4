"""The curves to begin with: none that would press the others flat, none that says nothing of its own."""

import numpy as np
import pytest
from vramscope.dashboard.components import legend
from vramscope.dashboard.figures.drawing import theme
from vramscope.dashboard.figures.drawing.series import (
    Curve,
    Flags,
    Series,
    Spans,
)

from vramscope.model.marks import Category

NO_SPANS = Spans(np.zeros(0), np.zeros(0), np.zeros(0, "i8"), np.zeros(0, "i8"))
NO_FLAGS = Flags(np.zeros(0), np.zeros(0, "i8"), ())


def series(*, reserved: int, used: int, capacity: int) -> Series:
    levels = np.array([0, reserved // 2, reserved])
    curve = Curve(np.array([0.0, 2.0]), np.array([used, used]))
    return Series(
        "time", np.arange(3.0), levels, levels, levels, curve, capacity, NO_SPANS, NO_SPANS, NO_FLAGS
    )


@pytest.mark.parametrize(("used", "is_shown"), [(4000, True), (4001, False)])
def test_the_drivers_count_is_shown_where_it_does_not_press_the_others_flat(used, is_shown):
    given = series(reserved=1000, used=used, capacity=0)

    assert ("device_used" in legend.usual(given)) == is_shown
    assert "device_used" in legend.offered(given)


def test_where_the_driver_alone_was_heard_it_is_shown():
    assert "device_used" in legend.usual(series(reserved=0, used=10**9, capacity=0))


def test_active_is_left_out_where_it_follows_allocated():
    assert "active" not in legend.usual(series(reserved=1000, used=1, capacity=0))


@pytest.mark.parametrize("category", Category)
def test_every_category_has_its_swatch_in_the_color_of_the_figures(category: Category) -> None:
    rule = f".part-{category.name.lower()}{{background:{theme.CATEGORY_COLOR[category]}}}"

    assert rule in theme.palette_css()
