"""A column keeps what was put into it, whatever it was, and its views do not change."""

import numpy as np
import pytest

from vramscope.columns import GrowingColumn


@pytest.mark.parametrize("parts", [[[0, 0], [0] * 50, [3, 0], [0]], [[1], [0, 0], [2]], [[], [0], []]])
def test_zeros_and_others_are_kept_in_their_places(parts):
    column, views = GrowingColumn("i8"), []
    for part in parts:
        column.extend(np.array(part, "i8"))
        views.append(column.view())
    whole = [value for part in parts for value in part]

    assert column.view().tolist() == whole
    for view in views:
        assert view.tolist() == whole[: len(view)]


def test_zeros_take_no_memory_until_something_else_comes():
    column = GrowingColumn("i8")
    column.extend(np.zeros(10, "i8"))
    column.reserve(1000)
    column._data.setflags(write=False)
    column.extend(np.zeros(500, "i8"))

    assert column.view().tolist() == [0] * 510
