"""What ranks of several hosts held together is right although their clocks differ by seconds."""

from dataclasses import replace

import numpy as np
import pytest

from vramscope.analysis.by_rank import by_rank
from vramscope.analysis.rank_comparison.clocks import on_one_clock
from vramscope.model.device import Process
from vramscope.model.marks import Steps
from vramscope.model.trace import Action

A, R = Action.ALLOC, Action.FREE_REQUESTED
KIB = 1 << 10
SECOND = 10**9


@pytest.fixture
def job(recording):
    """``job(skew_ns, n_steps)``: rank 1 is on a host whose clock is ahead.

    In every step, one second long, rank 0 holds 8 KiB in the first half and rank 1 in the second half: never
    more than 8 KiB together, and in the fourth step rank 1 begins early, so that 16 KiB are held.
    """

    def made(skew_ns, n_steps=6):
        found = []
        for rank, (first, last) in enumerate(((0.1, 0.4), (0.6, 0.9))):
            rows, times = [], []
            for step in range(n_steps):
                begin = 0.2 if rank and step == 3 else first
                rows += [(A, 4096, 8 * KIB), (R, 4096, 8 * KIB)]
                times += [step + begin, step + last]
            own = recording(*rows, process=Process(rank, 2, f"node{rank}"))
            at = 10**18 + (skew_ns if rank else 0)
            starts = at + SECOND * np.arange(n_steps)
            # Ranks end a step within a millisecond of one another.
            jitter = np.random.default_rng(rank).integers(0, 10**6, n_steps)
            steps = Steps.of(
                index=range(n_steps),
                start_event=2 * np.arange(n_steps),
                end_event=2 * np.arange(n_steps) + 2,
                start_ns=starts,
                end_ns=starts + SECOND + jitter,
            )
            time_ns = at + (np.array(times) * SECOND).astype("i8")
            found.append(replace(own, trace=replace(own.trace, time_ns=time_ns), steps=steps))
        return found

    return made


@pytest.mark.parametrize("skew_ns", [5 * SECOND, -5 * SECOND, 400 * 10**6])
def test_the_common_peak_is_that_of_one_clock(job, skew_ns):
    recordings, clocks = on_one_clock(job(skew_ns))
    found = by_rank(recordings[0], recordings[1:])

    assert found.total_bytes == 16 * KIB
    assert abs(found.moment_ns - (10**18 + 3.2 * SECOND)) < 10**6
    assert abs(clocks.offset_ns["node1"] - skew_ns) <= max(clocks.error_ns["node1"], 10**6)
    assert clocks.error_ns["node1"] <= 10**6


def test_without_alignment_the_answer_would_be_wrong(job):
    first, *others = job(400 * 10**6)

    assert abs(by_rank(first, others).moment_ns - (10**18 + 3.2 * SECOND)) > 10**8


def test_hosts_without_common_steps_are_named_and_stay(job):
    recordings = job(5 * SECOND, n_steps=2)
    found, clocks = on_one_clock(recordings)

    assert clocks.unaligned == ("node1",)
    assert found[1] is recordings[1]
