"""Forwards that wait for a backward are those of the thread that runs it."""

import numpy as np
import pytest

from vramscope.analysis.accumulation import accumulation
from vramscope.model.marks import Phase, Phases, Steps
from vramscope.model.recording import Recording
from vramscope.model.trace import Action, Trace

N_STEPS, N_FORWARDS = 3, 3
_EVENTS = 2 * N_FORWARDS
"""Number of events of a step: each forward allocates one block, and the last backward frees all."""


def trained(threads):
    """Three forwards, one in each of the threads, then a backward in each, for some steps."""
    blocks = np.arange(N_FORWARDS)
    start = np.concatenate([blocks, np.full(N_FORWARDS, N_FORWARDS)])
    end = np.append(start[:-1] + np.repeat([1, 0], N_FORWARDS)[:-1], _EVENTS)
    first = _EVENTS * np.repeat(np.arange(N_STEPS), _EVENTS)
    return Recording(
        trace=Trace.of(
            action=[*[Action.ALLOC] * N_FORWARDS, *[Action.FREE_REQUESTED] * N_FORWARDS] * N_STEPS,
            address=[*blocks, *blocks] * N_STEPS,
            size=[1 << 20] * _EVENTS * N_STEPS,
            block_size=[1 << 20] * _EVENTS * N_STEPS,
        ),
        steps=Steps.of(
            index=np.arange(N_STEPS),
            start_event=_EVENTS * np.arange(N_STEPS),
            end_event=_EVENTS * np.arange(1, N_STEPS + 1),
        ),
        phases=Phases.of(
            phase=[*[Phase.FORWARD] * N_FORWARDS, *[Phase.BACKWARD] * N_FORWARDS] * N_STEPS,
            step=np.repeat(np.arange(N_STEPS), _EVENTS),
            start_event=np.tile(start, N_STEPS) + first,
            end_event=np.tile(end, N_STEPS) + first,
            thread=[*threads, *threads] * N_STEPS,
        ),
    )


@pytest.mark.parametrize(("threads", "n_forwards"), [((1, 1, 1), [3]), ((1, 2, 3), [])])
def test_forwards_of_three_threads_wait_for_three_backwards(threads, n_forwards):
    assert [each.evidence["forwards"] for each in accumulation(trained(threads))] == n_forwards
