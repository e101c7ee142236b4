"""Events of one address belong to one block after the other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramscope.allocator.lives import BlockLives, lives, stable_order
from vramscope.model.trace import Action, Trace

A, R, C, S = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED, Action.SEGMENT_FREE


def lives_of(trace):
    """The lives of a trace without ``block_size``, those of blocks from before first."""
    return BlockLives.joined(*lives(trace, is_filled_in=False))


def rows(trace):
    found = lives_of(trace)
    return list(zip(found.alloc.tolist(), found.request.tolist(), found.end.tolist(), strict=True))


def test_an_address_that_is_used_again_has_several_lives(trace_of):
    trace = trace_of((A, 8, 10), (A, 16, 5), (R, 8, 10), (C, 8, 10), (A, 8, 7))

    assert rows(trace) == [(0, 2, 3), (1, -1, -1), (4, -1, -1)]


def test_a_free_without_allocation_is_of_a_block_from_before(trace_of):
    trace = trace_of((C, 8, 10), (R, 16, 20), (C, 16, 20))

    assert rows(trace) == [(-1, -1, 0), (-1, 1, 2)]
    assert lives_of(trace).requested_size.tolist() == [10, 20]


def test_freed_twice_counts_once(trace_of):
    assert rows(trace_of((A, 8, 1), (R, 8, 1), (R, 8, 1), (C, 8, 1), (C, 8, 1))) == [(0, 1, 3)]


def test_a_free_of_a_block_that_has_ended_belongs_to_no_life(trace_of):
    assert rows(trace_of((A, 8, 1), (C, 8, 1), (R, 8, 1), (C, 8, 1))) == [(0, -1, 1)]


def test_allocated_where_a_block_lives_counts_once(trace_of):
    assert rows(trace_of((A, 8, 1), (A, 8, 1), (R, 8, 1), (C, 8, 1))) == [(0, 2, 3)]


def test_a_block_whose_address_is_handed_out_again_is_over(trace_of):
    assert rows(trace_of((A, 8, 1), (R, 8, 1), (A, 8, 2))) == [(0, 1, 2), (2, -1, -1)]
    assert rows(trace_of((R, 8, 1), (A, 8, 2))) == [(-1, 0, 1), (1, -1, -1)]


def test_a_segment_that_goes_ends_no_life(trace_of):
    assert rows(trace_of((A, 8, 1), (S, 8, 1), (R, 8, 1), (C, 8, 1))) == [(0, 2, 3)]


def test_a_record_without_requested_frees_has_lives_all_the_same(trace_of):
    assert rows(trace_of((A, 8, 1), (C, 8, 1), (A, 8, 1), (C, 8, 1))) == [(0, -1, 1), (2, -1, 3)]


def test_no_events_no_lives(trace_of):
    assert rows(trace_of((Action.SNAPSHOT, 0, 0))) == rows(trace_of((A, 8, 1)).rows([])) == []


@pytest.mark.parametrize("highest", [0, 1, 2**16, 2**36, 2**47, 2**64 - 1])
@pytest.mark.parametrize("unit", [1, 512])
def test_the_order_of_addresses_is_that_of_a_stable_sort(highest, unit):
    random = np.random.default_rng(highest % 97)
    address = random.integers(0, highest // unit, 2000, dtype="u8", endpoint=True)
    address = random.choice(address[:50], 2000) * np.uint64(unit)

    assert stable_order(address).tolist() == np.argsort(address, kind="stable").tolist()


def test_no_addresses_have_an_order():
    assert stable_order(np.zeros(0, "u8")).tolist() == []


def in_turn(moves):
    """ALLOC, FREE_REQUESTED and end of each life, event by event; blocks from before first, by address."""
    found, last = [], {}
    for event, (action, address, _) in enumerate(moves):
        life = last.get(address)
        if life is None or (action == A and life[1:] != [-1, -1]):
            if life is not None and life[2] == -1:
                life[2] = event
            life = last[address] = [-1, -1, -1]
            found.append((address, life))
            life[action] = event
        elif action != A and life[2] == -1 and life[action] == -1:
            life[action] = event
    older = sorted((address, life) for address, life in found if life[0] == -1)
    return [life for _, life in older] + [life for _, life in found if life[0] != -1]


@pytest.mark.parametrize("stretch", [1, 3, 1 << 14])
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0, 8, 16, 1 << 40]), st.booleans())))
def test_lives_of_any_record_are_those_of_its_counted_events_in_turn(stretch, moves):
    assert (int(A), int(R), int(C)) == (0, 1, 2)
    action, address, is_counted = zip(*moves, strict=True) if moves else ((), (), ())
    trace = Trace.of(action=action, address=address, block_size=is_counted)
    counted = [event for event, (_, _, counts) in enumerate(moves) if counts]

    found = BlockLives.joined(*lives(trace, stretch=stretch))

    events = np.column_stack([found.alloc, found.request, found.end])
    truth = in_turn([moves[event] for event in counted])
    assert events.tolist() == [[counted[at] if at >= 0 else -1 for at in life] for life in truth]
