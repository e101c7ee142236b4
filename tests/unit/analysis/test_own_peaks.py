"""What a group held at the peak of all and the most that it ever held are two numbers."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramscope.analysis.lifetimes import lifetimes
from vramscope.analysis.own_peaks import BY, own_peaks
from vramscope.errors import UsageError
from vramscope.model.recording import Recording
from vramscope.model.snapshot import Blocks, Segments, Snapshot
from vramscope.model.stacks import stacks_of
from vramscope.model.trace import Action

A, R, C = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED
KIB = 1 << 10
OPS = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 4096)), max_size=40)
LOOP, STEP = "train.py:3 loop", "train.py:9 step"


@pytest.fixture
def taking_turns(recording):
    """``loop`` holds 4 KiB, lets go, and 3 KiB of ``step`` with 2 KiB of ``loop`` are the peak of all."""
    return recording(
        (A, 8192, 4 * KIB, 1),
        (R, 8192, 4 * KIB),
        (C, 8192, 4 * KIB),
        (A, 16384, 3 * KIB, 2),
        (A, 32768, 2 * KIB, 1),
        (R, 16384, 3 * KIB),
        (C, 16384, 3 * KIB),
        stacks=stacks_of([("loop", "train.py", 3)], [("step", "train.py", 9)]),
    )


def test_the_largest_by_itself_need_not_be_the_largest_at_the_peak(taking_turns):
    found = own_peaks(taking_turns, by="line")

    assert found.by_name == {LOOP: (2 * KIB, 4 * KIB), STEP: (3 * KIB, 3 * KIB)}
    assert list(found.by_name) == [LOOP, STEP]
    assert (found.instant, found.own_instant.tolist()) == (5, [1, 4])


def test_what_was_there_before_has_its_peak_at_the_start():
    state = Snapshot(
        segments=Segments.of(address=[0], size=[20480]),
        blocks=Blocks.of(segment=[0], address=[0], size=[KIB], requested_size=[1000]),
    )

    found = own_peaks(Recording(initial=state), by="phase")

    assert found.by_name == {"before the recording": (KIB, KIB)}
    assert found.own_instant.tolist() == [0]


def test_an_unknown_property_is_refused(taking_turns):
    with pytest.raises(UsageError):
        own_peaks(taking_turns, by="colour")


def held(recording, by, instant):
    """Bytes by group at one instant, counted block by block."""
    found, totals = lifetimes(recording), Counter()
    group, names = BY[by](recording, found, np.arange(len(found)))
    for row in np.flatnonzero(found.allocated_at(instant)).tolist():
        totals[names[group[row]]] += int(found.block_size[row])
    return totals


@given(OPS, st.integers(0, 20))
def test_an_own_peak_is_the_most_of_all_instants(play, ops, n_before):
    recording = play(ops, n_before).recording
    allocated = recording.timeline().allocated_bytes
    for by in BY:
        found = own_peaks(recording, by)
        at_each = [held(recording, by, k) for k in range(len(recording.trace) + 1)]
        names = {name for totals in at_each for name in totals}

        assert [totals.total() for totals in at_each] == allocated.tolist()
        assert found.instant == int(allocated.argmax())
        assert {name: n for name, (n, _) in found.by_name.items() if n} == at_each[found.instant]
        assert {name: own for name, (_, own) in found.by_name.items()} == {
            name: max(totals[name] for totals in at_each) for name in names
        }
        for group, own, instant in zip(found.group, found.own_peak_bytes, found.own_instant, strict=True):
            assert [totals[found.names[group]] for totals in at_each].index(own) == instant


def test_a_group_that_holds_nothing_at_the_peak_is_listed(recording):
    rows = [(A, 8192, 4 * KIB, 1), (R, 8192, 4 * KIB), (C, 8192, 4 * KIB), (A, 16384, 3 * KIB, 2)]
    stacks = stacks_of([("loop", "train.py", 3)], [("step", "train.py", 9)])

    found = own_peaks(recording(*rows, stacks=stacks), by="line")

    assert (found.instant, found.by_name) == (1, {LOOP: (4 * KIB, 4 * KIB), STEP: (0, 3 * KIB)})
