"""Ranks are put beside one another at one moment of all of them, or in the same step."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramscope.analysis.by_rank import NONE, by_rank
from vramscope.errors import UsageError
from vramscope.model.device import Device, Process
from vramscope.model.marks import Steps
from vramscope.model.past import Past, SummarizedSteps
from vramscope.model.recording import Recording
from vramscope.model.trace import Action

A, R = Action.ALLOC, Action.FREE_REQUESTED
KIB = 1 << 10
OPS = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 4096)), max_size=15)


@pytest.fixture
def on_rank(recording):
    """``on_rank(rank, times, *rows, …)``."""

    def build(rank, times, *rows, **fields):
        made = recording(*rows, process=Process(rank=rank, world_size=2), **fields)
        return replace(made, trace=replace(made.trace, time_ns=np.array(times, "i8")))

    return build


@pytest.fixture
def two_ranks(on_rank):
    """Rank 0 has 8 KiB until 30 and then 2; rank 1 has 1 KiB from 15 on and 5 from 40 on: together 9, then 7.

    Steps begin at different times: number 7 is rank 0's first and rank 1's second.
    """
    return (
        on_rank(
            0,
            [10, 20, 30],
            (A, 1, 2 * KIB),
            (A, 2, 6 * KIB),
            (R, 2, 6 * KIB),
            steps=Steps.of(index=[7], start_event=[2], end_event=[3]),
        ),
        on_rank(
            1,
            [15, 40],
            (A, 1, KIB),
            (A, 2, 4 * KIB),
            steps=Steps.of(index=[6, 7, 8], start_event=[0, 0, 1], end_event=[0, 1, 2]),
        ),
    )


def test_the_peak_of_all_together_is_at_one_moment_and_each_has_its_own(two_ranks):
    found = by_rank(two_ranks[0], two_ranks[1:])

    assert (found.aligned, found.moment_ns, found.total_bytes) == ("time", 20, 9 * KIB)
    assert found.names == ("rank 0", "rank 1")
    assert found.allocated_bytes.tolist() == [8 * KIB, KIB]
    assert (found.instant.tolist(), found.time_ns.tolist()) == ([2, 1], [20, 15])
    assert (found.own_peak_bytes.tolist(), found.own_instant.tolist()) == ([8 * KIB, 5 * KIB], [2, 2])
    assert found.is_within.tolist() == [True, True]


def test_a_rank_that_has_not_begun_yet_is_the_one_that_was_not_recorded_then(two_ranks, on_rank):
    late = on_rank(2, [100], (A, 1, 512))

    found = by_rank(two_ranks[0], [two_ranks[1], late])

    assert (found.moment_ns, found.is_within.tolist()) == (20, [True, True, False])


@pytest.mark.parametrize(
    ("moment", "allocated", "is_within"),
    [
        (10, [2 * KIB, 0], [True, False]),
        (29, [8 * KIB, KIB], [True, True]),
        (30, [2 * KIB, KIB], [True, True]),
        (40, [2 * KIB, 5 * KIB], [False, True]),
    ],
)
def test_at_a_moment_each_has_what_it_had_after_all_events_until_then(
    two_ranks, moment, allocated, is_within
):
    found = by_rank(two_ranks[0], two_ranks[1:], time_ns=moment)

    assert (found.allocated_bytes.tolist(), found.is_within.tolist()) == (allocated, is_within)
    assert found.own_peak_bytes.tolist() == [8 * KIB, 5 * KIB]


def test_a_window_has_the_peak_of_all_and_own_peaks_the_levels_on_entry_included(two_ranks):
    found = by_rank(two_ranks[0], two_ranks[1:], window=(25, 50))

    assert (found.moment_ns, found.total_bytes) == (25, 9 * KIB)
    assert found.own_peak_bytes.tolist() == [8 * KIB, 5 * KIB]

    found = by_rank(two_ranks[0], two_ranks[1:], window=(31, 50))

    assert (found.moment_ns, found.allocated_bytes.tolist()) == (40, [2 * KIB, 5 * KIB])
    assert found.own_peak_bytes.tolist() == [2 * KIB, 5 * KIB]


def test_in_a_step_each_is_at_its_own_peak_there(two_ranks):
    found = by_rank(two_ranks[0], two_ranks[1:], step=7)

    assert (found.aligned, found.own_peak_bytes.tolist()) == ("step", [8 * KIB, KIB])
    assert (found.allocated_bytes.tolist(), found.instant.tolist()) == ([8 * KIB, KIB], [2, 1])


def test_a_rank_without_that_step_says_nothing(two_ranks):
    found = by_rank(two_ranks[0], two_ranks[1:], step=8)

    assert (found.own_peak_bytes.tolist(), found.instant.tolist()) == ([NONE, 5 * KIB], [NONE, 2])
    assert (found.is_within.tolist(), found.total_bytes) == ([False, True], 5 * KIB)


def test_a_step_whose_events_a_cap_took_has_its_peak_left(on_rank):
    past = Past(
        n_events=30,
        steps=Steps.of(index=[0], start_event=[0], end_event=[30]),
        summarized=SummarizedSteps.of(start_event=[0], end_event=[30], allocated=[9000]),
    )

    found = by_rank(on_rank(0, [10], (A, 1, KIB), past=past), step=0)

    assert (found.own_peak_bytes.tolist(), found.reserved_bytes.tolist(), found.instant.tolist()) == (
        [9000],
        [NONE],
        [NONE],
    )


def test_devices_of_one_rank_are_distinguished(on_rank):
    found = by_rank(on_rank(0, [1], (A, 1, 1)), [on_rank(0, [1], (A, 1, 1), device=Device(index=1))])

    assert found.names == ("rank 0, device 0", "rank 0, device 1")


@pytest.mark.parametrize(
    "asked", [{"time_ns": 9}, {"time_ns": 41}, {"window": (50, 60)}, {"step": 99}, {"step": 7, "time_ns": 20}]
)
def test_what_none_of_them_reaches_to_is_refused(two_ranks, asked):
    with pytest.raises(UsageError, match="by_rank"):
        by_rank(two_ranks[0], two_ranks[1:], **asked)


def test_without_a_clock_there_is_no_common_moment_but_steps(on_rank, two_ranks):
    timeless = on_rank(3, [0], (A, 1, KIB), steps=Steps.of(index=[7], start_event=[0], end_event=[1]))

    with pytest.raises(UsageError, match="rank 3, device 0 has no clock"):
        by_rank(two_ranks[0], [timeless])
    assert by_rank(two_ranks[0], [timeless], step=7).own_peak_bytes.tolist() == [8 * KIB, KIB]
    assert by_rank(timeless).allocated_bytes.tolist() == [KIB]


@given(st.lists(st.tuples(OPS, st.integers(0, 5)), min_size=1, max_size=3))
def test_the_peak_of_all_is_the_highest_sum_of_any_moment(play, histories):
    """Each in turn is at every moment of its own, while the others are where their clocks are."""
    recordings = [play(*history).recording for history in histories]
    levels = [recording.timeline().allocated_bytes.tolist() for recording in recordings]
    # Events of the toy are at 0, 1, 2 …: one a nanosecond of each, in the order of the recordings.
    now = [0] * len(recordings)
    sums = [sum(level[0] for level in levels)]
    for moment in range(max(map(len, levels))):
        for i, level in enumerate(levels):
            now[i] = min(moment + 1, len(level) - 1)
            sums.append(sum(level[k] for level, k in zip(levels, now, strict=True)))
    shifted = [_later(recording) for recording in recordings]

    assert by_rank(shifted[0], shifted[1:]).total_bytes == max(sums)


def _later(recording: Recording) -> Recording:
    """A clock that is not 0 at first, which would be none."""
    trace = recording.trace
    return replace(recording, trace=replace(trace, time_ns=trace.time_ns + 1))
