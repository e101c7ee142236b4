"""Events of segments that cancel out may be forgotten: what follows from the others is the same."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from vramscope.allocator.layout import segments_after
from vramscope.allocator.state_index import (
    relevant_segment_events,
)
from vramscope.model.snapshot import Segments
from vramscope.model.trace import Action, Trace

MIB = 1 << 20
CUDA = st.tuples(st.sampled_from([Action.SEGMENT_ALLOC, Action.SEGMENT_FREE]), st.integers(0, 2), st.just(1))
MAPPED = st.tuples(
    st.sampled_from([Action.SEGMENT_MAP, Action.SEGMENT_UNMAP]), st.integers(4, 5), st.integers(1, 2)
)
BEFORE = Segments.of(address=[0, 10 * MIB], size=[2 * MIB, 4 * MIB], is_expandable=[False, True])


def trace_of_moves(moves):
    return Trace.of(
        action=[action for action, _, _ in moves],
        address=[place * 2 * MIB for _, place, _ in moves],
        size=[size * 2 * MIB for _, _, size in moves],
        stack_id=range(1, len(moves) + 1),
    )


@settings(max_examples=200)
@given(st.one_of(st.lists(CUDA, max_size=12), st.lists(MAPPED, min_size=4, max_size=14)), st.data())
def test_nothing_that_follows_depends_on_what_is_forgotten(moves, data):
    trace = trace_of_moves(moves)
    n_first = data.draw(st.integers(0, len(moves)))

    kept = relevant_segment_events(trace, np.arange(n_first), BEFORE)
    later = np.concatenate([kept, np.arange(n_first, len(moves))])

    truth, found = segments_after(BEFORE, trace), segments_after(BEFORE, trace.rows(later))
    for name, column in truth.columns():
        assert getattr(found, name).tolist() == column.tolist(), name


def test_what_came_and_went_is_forgotten_and_what_was_there_before_is_not():
    made, freed, again = (
        (Action.SEGMENT_ALLOC, 1, 1), (Action.SEGMENT_FREE, 1, 1), (Action.SEGMENT_FREE, 0, 1)
    )  # fmt: skip
    trace = trace_of_moves([made, freed, again, made, freed, made])

    assert relevant_segment_events(trace, np.arange(5), BEFORE).tolist() == [2]
    assert relevant_segment_events(trace, np.arange(6), BEFORE).tolist() == [2, 5]


def test_maps_and_unmaps_of_one_range_leave_the_first_and_what_does_not_cancel_out():
    here, gone = (Action.SEGMENT_MAP, 4, 1), (Action.SEGMENT_UNMAP, 4, 1)
    trace = trace_of_moves([here, gone] * 50)

    assert len(relevant_segment_events(trace, np.arange(99), BEFORE)) == 1
    assert len(relevant_segment_events(trace, np.arange(100), BEFORE)) == 2


def test_of_a_range_that_a_record_maps_twice_both_count():
    here, gone = (Action.SEGMENT_MAP, 4, 1), (Action.SEGMENT_UNMAP, 4, 1)

    assert relevant_segment_events(
        trace_of_moves([here, gone, here, here]), np.arange(4), BEFORE
    ).tolist() == [0, 3]


def test_the_first_that_ends_at_an_address_stays_too():
    short, here, gone = (
        (Action.SEGMENT_UNMAP, 4, 1), (Action.SEGMENT_MAP, 4, 2), (Action.SEGMENT_UNMAP, 4, 2)
    )  # fmt: skip

    assert relevant_segment_events(
        trace_of_moves([short, here, gone, here]), np.arange(4), BEFORE
    ).tolist() == [0, 1]
