"""The pace of a run is that of its latest steps."""

import numpy as np

from vramscope.analysis.pace import StepPace, left_s, pace
from vramscope.model.marks import Steps


def steps(began_s: list[float]) -> Steps:
    at = np.array(began_s) * 10**9
    n = np.arange(len(at))
    return Steps.of(index=n + 5, start_event=n, end_event=n + 1, start_ns=at, end_ns=at + 10)


def test_the_pace_follows_the_latest_twenty_steps() -> None:
    found = pace(steps([10.0 * i + 1 for i in range(30)] + [301.0 + 0.5 * i for i in range(20)]))

    assert found is not None
    assert found.step == 54
    assert found.steps_per_s == 2.0


def test_a_first_step_that_compiles_is_no_pace_once_others_are_known() -> None:
    assert pace(steps([1.0, 61.0])) == (6, 1 / 60)
    assert pace(steps([1.0, 61.0, 61.5, 62.0])) == (8, 2.0)


def test_without_two_times_there_is_no_pace() -> None:
    assert pace(Steps.of()) is None
    assert pace(steps([3.0])) == (5, None)
    assert pace(steps([0.0, 0.0])) == (6, None)


def test_the_time_left_counts_the_step_that_has_begun_and_is_missing_where_it_would_be_a_guess() -> None:
    # Steps 90 to 99 are to be made, each in half a second.
    assert left_s(StepPace(90, 2.0), 100) == 5.0
    assert left_s(StepPace(90, None), 100) is None
    assert left_s(StepPace(90, 2.0), 0) is None
    assert left_s(StepPace(100, 2.0), 100) is None
