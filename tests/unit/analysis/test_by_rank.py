"""Ranks are put beside one another at one moment of all of them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramscope.analysis.by_rank import by_rank
from vramscope.errors import UsageError
from vramscope.model.device import Device, Process
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
    """Rank 0 has 8 KiB until 30, then 2; rank 1 has 1 KiB from 15 on, 5 from 40 on: together 9, then 7."""
    return (
        on_rank(
            0,
            [10, 20, 30],
            (A, 1, 2 * KIB),
            (A, 2, 6 * KIB),
            (R, 2, 6 * KIB),
        ),
        on_rank(
            1,
            [15, 40],
            (A, 1, KIB),
            (A, 2, 4 * KIB),
        ),
    )


def test_the_peak_of_all_together_is_at_one_moment_and_each_has_its_own(two_ranks):
    found = by_rank(two_ranks[0], two_ranks[1:])

    assert (found.moment_ns, found.total_bytes) == (20, 9 * KIB)
    assert found.names == ("rank 0", "rank 1")
    assert found.allocated_bytes.tolist() == [8 * KIB, KIB]
    assert (found.instant.tolist(), found.time_ns.tolist()) == ([2, 1], [20, 15])
    assert (found.own_peak_bytes.tolist(), found.own_instant.tolist()) == ([8 * KIB, 5 * KIB], [2, 2])
    assert found.is_within.tolist() == [True, True]


def test_a_rank_that_has_not_begun_yet_is_the_one_that_was_not_recorded_then(two_ranks, on_rank):
    late = on_rank(2, [100], (A, 1, 512))

    found = by_rank(two_ranks[0], [two_ranks[1], late])

    assert (found.moment_ns, found.is_within.tolist()) == (20, [True, True, False])


def test_devices_of_one_rank_are_distinguished(on_rank):
    found = by_rank(on_rank(0, [1], (A, 1, 1)), [on_rank(0, [1], (A, 1, 1), device=Device(index=1))])

    assert found.names == ("rank 0, device 0", "rank 0, device 1")


def test_without_a_clock_there_is_no_common_moment(on_rank, two_ranks):
    timeless = on_rank(3, [0], (A, 1, KIB))

    with pytest.raises(UsageError, match="rank 3, device 0 has no clock"):
        by_rank(two_ranks[0], [timeless])
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
