"""Bytes by call stack: all of what was allocated, the unknown included."""

from vramscope.analysis.by_stack import by_stack
from vramscope.model.recording import Recording
from vramscope.model.trace import Action

A, R = Action.ALLOC, Action.FREE_REQUESTED


def test_stacks_are_joined_and_the_largest_comes_first(recording):
    history = recording((A, 1, 512, 4), (A, 2, 2000, 9), (A, 3, 500, 4), (A, 4, 1, 9), (R, 4, 1, 9))

    found = by_stack(history, instant=5)

    assert found.stack_id.tolist() == [9, 4]
    assert found.bytes.tolist() == [2048, 1024]
    assert found.count.tolist() == [1, 2]
    assert found.requested_bytes.tolist() == [2000, 1012]
    assert found.total_bytes == 3072


def test_without_an_instant_it_is_the_peak(recording):
    found = by_stack(recording((A, 1, 512, 4), (A, 2, 512, 9), (R, 1, 512)))

    assert (found.instant, found.total_bytes) == (2, 1024)


def test_nothing_was_held_by_nobody():
    found = by_stack(Recording())

    assert (len(found), found.total_bytes) == (0, 0)
