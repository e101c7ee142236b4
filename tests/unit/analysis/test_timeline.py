"""The four totals are torch's, at every instant, whatever pre-dates the trace."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramscope.allocator.levels import levels, most_allocated
from vramscope.analysis.timeline import instant_of, timeline
from vramscope.errors import UsageError
from vramscope.model.recording import Recording
from vramscope.model.snapshot import Blocks, BlockState, Segments, Snapshot
from vramscope.model.trace import Action

A, R, C, O = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED, Action.OOM  # noqa: E741
OPS = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 4096)), max_size=120)


def test_the_totals_by_hand(recording):
    totals = timeline(
        recording((Action.SEGMENT_ALLOC, 0, 2048), (A, 0, 700), (A, 1024, 1), (R, 0, 700), (C, 0, 700))
    )

    assert totals.requested_bytes.tolist() == [0, 0, 700, 701, 701, 1]
    assert totals.allocated_bytes.tolist() == [0, 0, 1024, 1536, 512, 512]
    assert totals.active_bytes.tolist() == [0, 0, 1024, 1536, 1536, 512]
    assert totals.reserved_bytes.tolist() == [0, 2048, 2048, 2048, 2048, 2048]
    assert totals.time_ns.tolist() == [1000, 1000, 2000, 3000, 4000, 5000]


def test_nothing_recorded_is_one_instant_of_nothing():
    totals = timeline(Recording())

    assert [column.tolist() for _, column in totals.columns()] == [[0]] * 5


def test_an_expandable_segment_grows_and_shrinks(recording):
    totals = timeline(
        recording((Action.SEGMENT_MAP, 0, 20), (Action.SEGMENT_MAP, 20, 20), (Action.SEGMENT_UNMAP, 0, 20))
    )

    assert totals.reserved_bytes.tolist() == [0, 20, 40, 20]


def test_a_failed_allocation_and_a_snapshot_move_nothing(recording):
    totals = timeline(recording((A, 0, 512), (O, 0, 10**12), (Action.SNAPSHOT, 0, 512)))

    assert totals.allocated_bytes.tolist() == [0, 512, 512, 512]
    assert totals.reserved_bytes.tolist() == [0, 0, 0, 0]


def test_a_completion_without_its_request_frees_the_memory_itself(recording):
    totals = timeline(recording((A, 0, 512), (C, 0, 512), (A, 0, 512), (R, 0, 512), (C, 0, 512)))

    assert totals.allocated_bytes.tolist() == [0, 512, 0, 512, 0, 0]
    assert totals.active_bytes.tolist() == [0, 512, 0, 512, 512, 0]


def test_a_block_that_was_pending_at_the_start_is_not_freed_twice(recording):
    initial = Snapshot(
        segments=Segments.of(address=[0], size=[2048]),
        blocks=Blocks.of(
            address=[0, 512, 1024],
            size=[512, 512, 1024],
            requested_size=[500, 400, 0],
            state=[BlockState.PENDING_FREE, BlockState.ALLOCATED, BlockState.INACTIVE],
        ),
    )

    totals = timeline(recording((C, 0, 500), (C, 512, 400), initial=initial))

    assert totals.allocated_bytes.tolist() == [512, 512, 0]
    assert totals.active_bytes.tolist() == [1024, 512, 0]
    assert totals.requested_bytes.tolist() == [900, 400, 0]


@given(OPS, st.integers(0, 40))
def test_the_totals_are_those_of_the_books(play, ops, n_before):
    played = play(ops, n_before)
    totals = timeline(played.recording)

    got = zip(
        totals.requested_bytes,
        totals.allocated_bytes,
        totals.active_bytes,
        totals.reserved_bytes,
        strict=True,
    )
    assert [tuple(map(int, row)) for row in got] == played.totals


@given(OPS, st.integers(0, 40))
def test_two_threads_add_up_the_same_totals(play, ops, n_before):
    played = play(ops, n_before)
    found = levels(played.recording.trace, played.recording.initial, many=1)

    assert [tuple(map(int, row)) for row in zip(*found, strict=True)] == played.totals


def test_an_instant_that_does_not_exist_is_refused(recording):
    with pytest.raises(UsageError, match="instants 0 to 1"):
        instant_of(recording((A, 0, 1)), 2)


def test_the_instant_of_nothing_in_particular_is_the_first_peak(recording):
    assert instant_of(recording((A, 0, 512), (R, 0, 512), (A, 0, 512)), None) == 1


@pytest.mark.parametrize("stretch", [1, 5, 1 << 13])
@given(OPS, st.integers(0, 40))
def test_the_first_peak_is_found_without_the_whole_timeline(play, stretch, ops, n_before):
    recording = play(ops, n_before).recording

    first = timeline(recording).allocated_bytes.argmax()

    assert most_allocated(recording.trace, recording.initial, stretch=stretch) == first
    assert instant_of(recording, None) == first


def test_completions_without_requests_are_found_among_many_blocks(recording):
    """Frees that stand apart from their requests, each of them at an address that is used again."""
    rows = [(A, 512 * k, 512) for k in range(300)]
    for k in range(0, 300, 3):
        rows += [(R, 512 * k, 512), (C, 512 * (k + 1), 512), (C, 512 * k, 512), (A, 512 * (k + 1), 512)]
    totals = timeline(recording(*rows))

    assert totals.allocated_bytes[-1] == totals.active_bytes[-1] == 512 * 200
    assert totals.allocated_bytes[300:305].tolist() == [512 * n for n in (300, 299, 298, 298, 299)]
    assert totals.active_bytes[300:305].tolist() == [512 * n for n in (300, 300, 299, 298, 299)]
