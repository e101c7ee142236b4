"""Calls of empty_cache() in a loop are the program's, unless torch makes them before a capture."""

import pytest

from vramscope.analysis.empty_cache import empty_cache
from vramscope.model.stacks import stacks_of
from vramscope.model.trace import Action

CAPTURE = ("__enter__", "/site-packages/torch/cuda/graphs.py", 250)
OWN = ("__enter__", "/home/me/graphs.py", 250)


def emptied(recording, *callers):
    """Four turns that take a segment of 100 bytes, and empty the cache by the frames of *callers*."""
    call = ("empty_cache", "/site-packages/torch/cuda/memory.py", 1)
    stacks = stacks_of([call, *callers, ("main", "/home/me/train.py", 9)])
    turn = [(Action.SEGMENT_ALLOC, 0, 100), (Action.SEGMENT_FREE, 0, 100, len(stacks) - 1)]
    return recording(*turn * 4, stacks=stacks)


@pytest.mark.parametrize(("callers", "n_calls"), [((), [4]), ((OWN,), [4]), ((CAPTURE,), [])])
def test_what_a_capture_releases_is_no_call_of_the_program(recording, callers, n_calls):
    found = empty_cache(emptied(recording, *callers))

    assert [each.evidence["calls"] for each in found] == n_calls
