"""Every free belongs to the allocation whose block it frees, however often an address is used again."""

from hypothesis import given
from hypothesis import strategies as st

from vramscope.analysis.lifetimes import ALIVE, BEFORE, lifetimes
from vramscope.analysis.shared_results import shared_results
from vramscope.analysis.timeline import timeline
from vramscope.model.snapshot import Blocks, BlockState, Segments, Snapshot
from vramscope.model.trace import Action

A, R, C = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED
OPS = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 4096)), max_size=120)


def test_an_address_used_twice_is_two_lives(recording):
    found = lifetimes(recording((A, 7, 100, 1), (R, 7, 100), (C, 7, 100), (A, 7, 600, 2), (R, 7, 600)))

    assert found.alloc_event.tolist() == [0, 3]
    assert found.free_event.tolist() == [1, 4]
    assert found.completed_event.tolist() == [2, ALIVE]
    assert found.size.tolist() == [100, 600]
    assert found.block_size.tolist() == [512, 1024]
    assert found.stack_id.tolist() == [1, 2]
    assert found.alloc_ns.tolist() == [1000, 4000]
    assert found.free_ns.tolist() == [2000, 5000]


def test_frees_of_different_blocks_do_not_mix(recording):
    found = lifetimes(recording((A, 1, 1), (A, 2, 1), (R, 2, 1), (C, 2, 1), (R, 1, 1), (C, 1, 1)))

    assert found.free_event.tolist() == [4, 2]


def test_what_lives_on_has_no_end(recording):
    found = lifetimes(recording((A, 1, 1)))

    assert (found.free_event[0], found.completed_event[0], found.free_ns[0]) == (ALIVE, ALIVE, 0)


def test_what_was_there_before_comes_first(recording):
    initial = Snapshot(
        segments=Segments.of(address=[0], size=[2048], stream=[9]),
        blocks=Blocks.of(
            address=[0, 512, 1024],
            size=[512, 512, 1024],
            requested_size=[500, 400, 0],
            state=[BlockState.PENDING_FREE, BlockState.ALLOCATED, BlockState.INACTIVE],
            stack_id=[1, 2, 0],
        ),
    )

    found = lifetimes(recording((A, 1024, 5), (C, 0, 500), (R, 512, 400), initial=initial))

    assert found.address.tolist() == [0, 512, 1024]
    assert found.alloc_event.tolist() == [-1, -1, 0]
    assert found.free_event.tolist() == [BEFORE, 2, ALIVE]
    assert found.completed_event.tolist() == [1, ALIVE, ALIVE]
    assert found.stream.tolist() == [9, 9, 0]


def test_a_free_of_nobody_knows_what_is_left_out(recording):
    found = lifetimes(recording((R, 1, 1), (C, 1, 1), (A, 2, 1), (R, 3, 1)))

    assert found.address.tolist() == [2]
    assert found.free_event.tolist() == [ALIVE]


@given(OPS, st.integers(0, 40))
def test_who_is_live_at_every_instant_is_what_the_books_say(play, ops, n_before):
    played = play(ops, n_before)
    found = lifetimes(played.recording)

    for instant, live in enumerate(played.live):
        rows = found.rows(found.allocated_at(instant))
        assert set(zip(rows.address.tolist(), rows.alloc_event.tolist(), strict=True)) == live
        rows = found.rows(found.rows_at(instant))
        assert set(zip(rows.address.tolist(), rows.alloc_event.tolist(), strict=True)) == live


@given(OPS, st.integers(0, 40))
def test_lives_sum_up_to_the_totals(play, ops, n_before):
    recording = play(ops, n_before).recording
    found, totals = lifetimes(recording), timeline(recording)

    for instant in range(len(totals)):
        assert found.block_size[found.allocated_at(instant)].sum() == totals.allocated_bytes[instant]
        assert found.block_size[found.rows_active_at(instant)].sum() == totals.active_bytes[instant]
        assert found.size[found.rows_active_at(instant)].sum() == totals.requested_bytes[instant]


def test_a_block_of_analyses_within_another_hands_them_on(recording):
    history = recording((A, 1, 10))
    with shared_results():
        with shared_results():
            found = lifetimes(history)

        assert lifetimes(history) is found


def test_the_live_set_is_the_largest_block_first(recording):
    history = recording((A, 1, 10), (A, 2, 5000), (A, 3, 10), (R, 3, 10))

    assert lifetimes(history).largest_at(4).tolist() == [1, 0]
    assert lifetimes(history).largest_at(3).tolist() == [1, 0, 2]
