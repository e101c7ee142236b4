"""Events of one address belong to one block after the other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramscope.allocator.lives import lives, lives_by_birth, stable_order
from vramscope.model.trace import Action, Trace

A, R, C = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED


def rows(found):
    return sorted(zip(found.alloc.tolist(), found.request.tolist(), found.end.tolist(), strict=True))


def test_an_address_that_is_used_again_has_several_lives(trace_of):
    trace = trace_of((A, 8, 10), (A, 16, 5), (R, 8, 10), (C, 8, 10), (A, 8, 7))

    assert rows(lives(trace)) == [(0, 2, 3), (1, -1, -1), (4, -1, -1)]


def test_a_free_without_allocation_is_of_a_block_from_before(trace_of):
    found = lives(trace_of((C, 8, 10), (R, 16, 20), (C, 16, 20)))

    assert rows(found) == [(-1, -1, 0), (-1, 1, 2)]
    assert found.requested_size.tolist() == [10, 20]


def test_freed_twice_counts_once(trace_of):
    assert rows(lives(trace_of((A, 8, 1), (R, 8, 1), (R, 8, 1), (C, 8, 1), (C, 8, 1)))) == [(0, 1, 3)]


def test_allocated_where_a_block_lives_counts_once(trace_of):
    assert rows(lives(trace_of((A, 8, 1), (A, 8, 1), (R, 8, 1), (C, 8, 1)))) == [(0, 2, 3)]


def test_a_block_whose_address_is_handed_out_again_is_over(trace_of):
    assert rows(lives(trace_of((A, 8, 1), (R, 8, 1), (A, 8, 2)))) == [(0, 1, 2), (2, -1, -1)]


def test_a_record_without_requested_frees_has_lives_all_the_same(trace_of):
    assert rows(lives(trace_of((A, 8, 1), (C, 8, 1), (A, 8, 1), (C, 8, 1)))) == [(0, -1, 1), (2, -1, 3)]


def test_no_events_no_lives(trace_of):
    assert len(lives(trace_of((Action.SNAPSHOT, 0, 0)))) == 0


@pytest.mark.parametrize("highest", [0, 1, 2**16, 2**36, 2**47, 2**64 - 1])
@pytest.mark.parametrize("unit", [1, 512])
def test_the_order_of_addresses_is_that_of_a_stable_sort(highest, unit):
    random = np.random.default_rng(highest % 97)
    address = random.integers(0, highest // unit, 2000, dtype="u8", endpoint=True)
    address = random.choice(address[:50], 2000) * np.uint64(unit)

    assert stable_order(address).tolist() == np.argsort(address, kind="stable").tolist()


def test_no_addresses_have_an_order():
    assert stable_order(np.zeros(0, "u8")).tolist() == []


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 8, 16])), max_size=40))
def test_lives_found_a_stretch_at_a_time_are_those_found_at_once(moves):
    columns = [[move[i] for move in moves] for i in (0, 1)]
    trace = Trace.of(action=columns[0], address=columns[1], size=np.arange(len(moves)) + 10)
    at_once = lives(trace)

    in_turn = lives_by_birth(trace, stretch=3)

    order = np.lexsort((at_once.address, at_once.alloc))
    for name, column in at_once.rows(order).columns():
        assert getattr(in_turn, name).tolist() == column.tolist()


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 8, 16, 24, 1 << 40])), min_size=1, max_size=40),
    st.integers(1, 40),
)
def test_lives_of_parts_of_the_addresses_are_those_found_at_once(moves, many):
    columns = [[move[i] for move in moves] for i in (0, 1)]
    trace = Trace.of(action=columns[0], address=columns[1], size=np.arange(len(moves)) + 10)
    at_once = lives(trace)

    by_parts = lives(trace, many=many)

    for name, column in at_once.columns():
        assert getattr(by_parts, name).tolist() == column.tolist()
