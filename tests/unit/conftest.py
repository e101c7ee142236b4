"""What unit tests of several folders share."""

from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pytest

from vramscope.model.rank_summary import DeviceSummary


@pytest.fixture(scope="session")
def assert_same_device() -> Callable[[DeviceSummary, DeviceSummary], None]:
    """``assert_same_device(found, truth)``: the two summaries are equal, column by column."""

    def check(found: DeviceSummary, truth: DeviceSummary) -> None:
        for field in fields(DeviceSummary):
            here, there = getattr(found, field.name), getattr(truth, field.name)
            if field.name == "steps":
                for name, column in there.columns():
                    assert np.array_equal(getattr(here, name), column), name
            else:
                assert here == there, field.name

    return check
