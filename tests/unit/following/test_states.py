"""A trace that comes in parts has the states of the whole, and new events cost nothing of the old."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramscope.allocator.state_index import StateIndex
from vramscope.following import growing as module
from vramscope.following.growing import Following
from vramscope.model.recording import Recording
from vramscope.model.snapshot import Blocks, Segments, Snapshot
from vramscope.model.trace import Action, Trace

BLOCK = 1024
N_BLOCKS = 32
INITIAL = Snapshot(
    segments=Segments.of(address=[0], size=[N_BLOCKS * BLOCK]),
    blocks=Blocks.of(segment=[0], address=[0], size=[BLOCK], requested_size=[1000]),
)
DEEDS = st.lists(st.integers(0, N_BLOCKS - 1), max_size=120)


def consistent_trace(places):
    """Every touch of a place leads its block on: in use, freed, back, in use again."""
    following = {
        Action.ALLOC: Action.FREE_REQUESTED,
        Action.FREE_REQUESTED: Action.FREE_COMPLETED,
        Action.FREE_COMPLETED: Action.ALLOC,
    }
    last = dict.fromkeys(range(1, N_BLOCKS), Action.FREE_COMPLETED) | {0: Action.ALLOC}
    actions = []
    for place in places:
        last[place] = following[last[place]]
        actions.append(last[place])
    n = len(places)
    return Trace.of(
        action=actions,
        time_ns=range(1, n + 1),
        address=[place * BLOCK for place in places],
        size=[1000] * n,
        block_size=[BLOCK] * n,
        stack_id=range(1, n + 1),
    )


def assert_same_state(found, truth):
    assert (found.event, found.time_ns) == (truth.event, truth.time_ns)
    for table in ("segments", "blocks"):
        for name, column in getattr(truth, table).columns():
            assert np.array_equal(getattr(getattr(found, table), name), column), (truth.event, table, name)


def recorded(trace):
    return Recording(trace=trace, initial=INITIAL)


@given(DEEDS, st.integers(1, 30), st.integers(1, 40))
def test_states_are_those_of_the_whole_trace_however_it_was_cut(places, length, chapter):
    trace = consistent_trace(places)
    whole = StateIndex(trace, INITIAL)
    following = Following(recorded(trace.rows(slice(0))), chapter=chapter)

    for start in range(0, len(trace), length):
        assert_same_state(following.state_at(recorded(trace.rows(slice(start))), start), whole.at(start))
        following.follow(recorded(trace.rows(slice(start + length))))
        assert len(following) == min(start + length, len(trace))
    for k in range(len(trace) + 1):
        assert_same_state(following.state_at(recorded(trace), k), whole.at(k))


def test_new_events_are_added_without_those_of_full_chapters(monkeypatch):
    looked_at = []
    made = module.StateIndex

    def noticed(trace, initial):
        looked_at.append(len(trace))
        return made(trace, initial)

    monkeypatch.setattr(module, "StateIndex", noticed)
    trace = consistent_trace([place % N_BLOCKS for place in range(2000)])
    following = Following(recorded(trace.rows(slice(0))), chapter=64)
    for start in range(0, len(trace), 10):
        now = recorded(trace.rows(slice(start + 10)))
        following.state_at(now, start)

    assert 0 < max(looked_at) <= 74


def test_events_that_were_handed_over_are_not_copied():
    trace = consistent_trace([place % N_BLOCKS for place in range(100)])
    following = Following(recorded(trace.rows(slice(40))))
    following.state_at(recorded(trace), 70)

    assert following._indexed[1]._trace.address.base is trace.address


def test_an_instant_that_is_not_there_yet_is_refused():
    with pytest.raises(ValueError, match="instants 0 to 0"):
        Following(recorded(Trace.of())).state_at(recorded(Trace.of()), 1)
