"""What came from the driver and went back is told step by step, and nothing of it is lost."""

from hypothesis import given
from hypothesis import strategies as st

from vramscope.analysis.churn import churn, churn_of
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

    found = churn(made)

    assert found.step.tolist() == [-1, 0, 1]
    assert found.n_made.tolist() == [1, 2, 1]
    assert found.made_bytes.tolist() == [100, 320, 50]
    assert found.n_released.tolist() == [0, 2, 1]
    assert found.released_bytes.tolist() == [0, 120, 300]
    assert found.n_retries.tolist() == [0, 1, 0]
    assert found.n_ooms.tolist() == [0, 0, 1]
    assert found.retries == (4,)


def test_of_nothing_there_is_nothing():
    assert churn(Recording()).total == churn_of(Recording())
    assert churn(Recording()).n_made.tolist() == [0]


@given(OPS, st.integers(0, 30), st.integers(0, 80), st.integers(0, 80))
def test_what_was_made_less_what_went_is_the_change_of_the_reserved_bytes(play, ops, n_before, start, length):
    played = play(ops, n_before)
    steps = Steps.of(index=[0], start_event=[start], end_event=[start + length])
    recording = Recording(trace=played.recording.trace, initial=played.recording.initial, steps=steps)
    reserved = [row[3] for row in played.totals]

    found = churn(recording)

    change = found.made_bytes - found.released_bytes
    last = len(reserved) - 1
    assert change.sum() == reserved[-1] - reserved[0]
    assert change[1] == reserved[min(start + length, last)] - reserved[min(start, last)]
