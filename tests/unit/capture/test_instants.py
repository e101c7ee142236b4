"""Marks find their place among events that come later, by count and time."""

import numpy as np

from vramscope.allocator.ledger import Ledger
from vramscope.allocator.settings import Settings
from vramscope.capture.cuda.gap import bridge
from vramscope.capture.cuda.ring.instants import UNCOUNTED, instants
from vramscope.model.snapshot import Blocks, BlockState, Segments, Snapshot
from vramscope.model.trace import Action, Trace

A, R, C = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED


def trace(*rows):
    return Trace.of(action=[action for action, _ in rows], time_ns=[time for _, time in rows])


def test_the_count_places_a_mark_between_two_allocations():
    events = trace((A, 10), (A, 20), (R, 30), (C, 30), (A, 40))

    assert instants(events, 3, [0, 1, 3], [10, 20, 40]).tolist() == [0, 1, 5]


def test_the_time_places_it_among_the_frees():
    events = trace((A, 10), (R, 20), (C, 30), (A, 40))

    assert instants(events, 2, [1, 1, 1], [15, 25, 35]).tolist() == [1, 2, 3]


def test_a_clock_that_is_off_cannot_move_a_mark_over_an_allocation():
    events = trace((A, 1000), (A, 2000), (A, 3000))

    assert instants(events, 3, [1, 2], [5, 9000]).tolist() == [1, 2]


def test_a_ring_that_lost_its_beginning_counts_from_the_end():
    events = trace((A, 10), (A, 20))

    assert instants(events, 100, [97, 98, 99], [1, 15, 25]).tolist() == [0, 0, 1]


def test_without_a_count_the_time_decides():
    events = trace((A, 10), (A, 20))

    assert instants(events, 2, [UNCOUNTED, 7], [15, 25]).tolist() == [1, 2]


def test_no_marks_and_no_events():
    assert instants(trace(), 0, [], []).tolist() == []
    assert instants(trace(), 5, [5], [7]).tolist() == [0]


def state(*blocks, segments=((0, 1000),)):
    used = [(address, size, status) for address, size, status in blocks]
    snapshot = Snapshot(
        segments=Segments.of(address=[a for a, _ in segments], size=[s for _, s in segments]),
        blocks=Blocks.of(
            segment=[
                next(i for i, (start, size) in enumerate(segments) if start <= a < start + size)
                for a, _, _ in used
            ],
            address=[a for a, _, _ in used],
            size=[s for _, s, _ in used],
            requested_size=[s for _, s, _ in used],
            state=[status for _, _, status in used],
        ),
    )
    return Ledger(snapshot, Settings())


HELD, PENDING, FREE = BlockState.ALLOCATED, BlockState.PENDING_FREE, BlockState.INACTIVE


def moves(events):
    return [
        (Action(a).name, address) for a, address in zip(events.action, events.address.tolist(), strict=True)
    ]


def test_a_pause_in_which_nothing_changed_leaves_no_events():
    assert len(bridge(state((0, 512, HELD)), state((0, 512, HELD)), 7)) == 0


def test_a_pause_becomes_frees_then_allocations():
    before = state((0, 512, HELD), (512, 100, HELD))
    after = state((0, 512, HELD), (2000, 600, HELD), segments=((0, 1000), (2000, 1000)))
    events = bridge(before, after, 7)

    assert moves(events) == [
        ("FREE_REQUESTED", 512),
        ("FREE_COMPLETED", 512),
        ("SEGMENT_ALLOC", 2000),
        ("ALLOC", 2000),
    ]
    assert np.unique(events.time_ns).tolist() == [7]


def test_blocks_that_wait_for_another_stream_keep_waiting():
    gone = bridge(state((0, 512, PENDING)), state((0, 512, FREE)), 0)
    made = bridge(state((0, 512, FREE)), state((0, 512, PENDING)), 0)

    assert moves(gone) == [("FREE_COMPLETED", 0)]
    assert moves(made) == [("ALLOC", 0), ("FREE_REQUESTED", 0)]
