"""What came from the driver and went back is counted, and nothing of it is lost."""

from dataclasses import replace

import captures
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramscope.analysis.churn import GAINS, Churn, churn_of, retry_events
from vramscope.analysis.driver_calls import driver_calls
from vramscope.analysis.what_if import what_if
from vramscope.formats.torch_snapshot import read
from vramscope.model.counters import Counters
from vramscope.model.device import Process
from vramscope.model.marks import Steps
from vramscope.model.recording import Recording
from vramscope.model.stacks import stacks_of
from vramscope.model.trace import Action

MADE, GONE, MAPPED, UNMAPPED, OOM = (
    Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.SEGMENT_MAP, Action.SEGMENT_UNMAP, Action.OOM,
)  # fmt: skip
OPS = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 4096)), max_size=80)


def test_by_hand(recording):
    """Before the steps a segment; in step 0 a retry; in step 1 the program empties the cache, then fails."""
    stacks = stacks_of([("empty_cache", "memory.py", 1), ("main", "train.py", 9)])
    made = recording(
        (MADE, 0, 100),
        (MAPPED, 200, 20), (UNMAPPED, 200, 20), (GONE, 0, 100), (MADE, 0, 300),
        (GONE, 0, 300, len(stacks) - 1), (MADE, 0, 50), (OOM, 0, 999),
        stacks=stacks, steps=Steps.of(index=[7, 8], start_event=[1, 5], end_event=[5, 8]),
    )  # fmt: skip

    found, calls = churn_of(made), driver_calls(made)

    assert (found.n_made, found.made_bytes) == (4, 470)
    assert (found.n_released, found.released_bytes) == (3, 420)
    assert (found.n_retries, found.n_ooms) == (1, 1)
    assert calls.step.tolist() == [-1, 0, 0, 0, 0, 1, 1]
    assert calls.n_bytes.tolist() == [100, 20, 20, 100, 300, 300, 50]
    assert calls.is_retry.tolist() == [False, False, False, True, False, False, False]


SPLIT, COLLECTS = {"max_split_size": str(2000)}, {"garbage_collection_threshold": "0.5"}


@pytest.mark.parametrize(
    ("settings", "rows", "n_retries"),
    [
        ({}, [(MADE, 0, 3000), (MADE, 8192, 3000), (GONE, 0, 3000), (MADE, 0, 5000)], 1),
        (COLLECTS, [(MADE, 0, 3000), (MADE, 8192, 3000), (GONE, 0, 3000), (MADE, 0, 5000)], 0),
        (COLLECTS, [(MADE, 0, 3000), (GONE, 0, 3000), (MADE, 0, 5000)], 1),
        (SPLIT, [(MADE, 0, 3000), (GONE, 0, 3000), (MADE, 0, 5000)], 0),
        (SPLIT, [(MADE, 0, 3000), (GONE, 0, 3000), (OOM, 0, 5000)], 1),
        (
            SPLIT,
            [(MADE, 0, 3000), (MADE, 8192, 1000), (GONE, 0, 3000), (GONE, 8192, 1000), (MADE, 0, 5000)],
            1,
        ),
    ],
)
def test_a_part_of_the_cache_that_goes_by_itself_is_no_retry(recording, settings, rows, n_retries):
    made = recording(*rows, process=Process(allocator=settings))

    assert churn_of(made).n_retries == n_retries


@pytest.mark.parametrize(
    ("counted", "later", "n_retries"),
    [([], 4096, 1), ([], 4097, 0), ([0, 0], 4096, 0), ([3, 3, 5], 4097, 2), ([-1, 7, -1], 4096, 1)],
    ids=["as full as ever", "room was there", "torch counted none", "torch counted two", "one sample"],
)
def test_what_torch_counted_decides_and_without_it_whether_there_was_room(
    recording, counted, later, n_retries
):
    """Reserved are 8192 bytes when the cache goes and 4096 are requested: 12,288 would not have fitted."""
    rows = [(MADE, 0, 4096), (MADE, 8192, 4096), (GONE, 0, 4096), (MADE, 0, 4096), (MADE, 1 << 20, later)]
    made = recording(*rows)
    times = np.linspace(made.trace.time_ns[0], made.trace.time_ns[-1], len(counted)).astype("i8")

    found = replace(made, counters=Counters.of(time_ns=times, retries=counted))

    assert churn_of(found).n_retries == n_retries
    assert len(retry_events(found)) == min(n_retries, 1)


MIB = 1 << 20


@pytest.mark.parametrize(
    ("name", "device", "n_retries"),
    [
        ("pressure2", {"capacity_bytes": 2800 * MIB}, 2),
        ("split_press", {"capacity_bytes": 4700 * MIB}, 0),
        ("expand_press", {"capacity_bytes": 2410 * MIB}, 1),
        ("gc2", {"memory_fraction": 0.04, "total_bytes": 81559 * MIB}, 0),
    ],
)
def test_the_counts_of_a_record_are_those_of_the_allocator_that_predicts_it(name, device, n_retries):
    (recording,) = read(captures.genuine_file(name)).recordings
    counts, found = churn_of(recording), what_if(recording, **device)

    assert (counts.n_retries, counts.n_made) == (found.n_retries, found.n_segments)
    assert counts.n_retries == n_retries
    assert counts.n_ooms == (not found.fits)
    assert recording.timeline().reserved_bytes.max() == found.peak_reserved_bytes


def test_of_nothing_there_is_nothing():
    assert churn_of(Recording()) == Churn()
    assert len(driver_calls(Recording())) == 0


@given(OPS, st.integers(0, 30), st.integers(0, 80), st.integers(0, 80))
def test_what_was_made_less_what_went_is_the_change_of_the_reserved_bytes(play, ops, n_before, start, length):
    played = play(ops, n_before)
    steps = Steps.of(index=[0], start_event=[start], end_event=[start + length])
    recording = Recording(trace=played.recording.trace, initial=played.recording.initial, steps=steps)
    reserved = [row[3] for row in played.totals]

    calls = driver_calls(recording)

    change = np.where(np.isin(calls.kind, GAINS), calls.n_bytes, -calls.n_bytes)
    last = len(reserved) - 1
    assert change.sum() == reserved[-1] - reserved[0]
    inside = change[calls.step == 0].sum()
    assert inside == reserved[min(start + length, last)] - reserved[min(start, last)]
