"""A recording that is followed in pieces has the levels and peaks that the allocator's own books say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramscope.following.course import Course, advanced, begin
from vramscope.model.codes import QUANTITIES
from vramscope.model.table import Table
from vramscope.model.trace import Action

OPS = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 4096)), max_size=60)
CUTS = st.lists(st.integers(0, 60), max_size=12)


def followed(recording, sizes, cuts):
    """The course after pieces of these sizes; each piece is given the marks that are known by then."""
    course, first, waiting = begin(recording.initial), 0, np.array(cuts, "i8")
    for size in [*sizes, len(recording.trace)]:
        course = advanced(course, recording.trace.rows(slice(first, first + size)), waiting)
        first += size
        waiting = waiting[waiting > course.n_events]
    return course


def assert_same(found, truth):
    for name in Course.__slots__:
        here, there = getattr(found, name), getattr(truth, name)
        if name == "stretches":
            continue
        if isinstance(there, Table):
            assert sorted(zip(*(c.tolist() for _, c in here.columns()), strict=True)) == sorted(
                zip(*(c.tolist() for _, c in there.columns()), strict=True)
            ), name
        elif name != "failed":
            assert here == there, name


@given(OPS, st.integers(0, 12), st.lists(st.integers(1, 9), max_size=8))
def test_pieces_of_any_size_lead_to_what_the_books_say(play, ops, n_before, sizes):
    played = play(ops, n_before)
    course = followed(played.recording, sizes, [])

    assert tuple(course.level[name] for name in QUANTITIES) == played.totals[-1]
    for column, name in enumerate(QUANTITIES):
        values = [row[column] for row in played.totals]
        assert course.highest[name].n_bytes == max(values)
        assert course.highest[name].instant == values.index(max(values))
    at = course.highest["allocated"].instant
    assert (
        set(zip(course.at_peak.address.tolist(), course.at_peak.born.tolist(), strict=True))
        == played.live[at]
    )


@given(OPS, st.integers(0, 12), st.lists(st.integers(1, 9), max_size=8))
def test_pieces_of_any_size_lead_to_the_same_course(play, ops, n_before, sizes):
    recording = play(ops, n_before).recording

    assert_same(followed(recording, sizes, []), followed(recording, [], []))


@given(OPS, st.integers(0, 12), st.lists(st.integers(1, 9), max_size=8), CUTS)
def test_the_peak_between_two_cuts_is_the_highest_level_of_the_books_there(play, ops, n_before, sizes, cuts):
    played = play(ops, n_before)
    n_events = len(played.recording.trace)
    cuts = sorted({min(cut, n_events) for cut in cuts})
    course = followed(played.recording, sizes, cuts)
    pairs = [(a, b) for a in cuts for b in cuts if a < b]
    start, end = (np.array([pair[i] for pair in pairs], "i8") for i in (0, 1))
    found = course.stretches.between(start, end, course.n_events)

    for row, (first, last) in enumerate(pairs):
        for column, name in enumerate(QUANTITIES):
            assert found[name][row] == max(r[column] for r in played.totals[first : last + 1])


@pytest.mark.parametrize("sizes", [[], [1, 1], [3]])
def test_the_first_failure_has_what_was_allocated_then(recording, sizes):
    made = recording(
        (Action.SEGMENT_ALLOC, 4096, 4096),
        (Action.ALLOC, 4096, 512, 3),
        (Action.OOM, 0, 2048),
        (Action.FREE_REQUESTED, 4096, 512),
        (Action.OOM, 0, 1024),
    )
    course = followed(made, sizes, [])

    assert course.n_failed == 2
    assert (course.failed.event, course.failed.requested_bytes) == (2, 2048)
    assert course.failed.reserved_bytes == 4096
    assert course.failed.live.stack_id.tolist() == [3]
