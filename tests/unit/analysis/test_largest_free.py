"""The largest free block is what the allocator could hand out without asking the driver."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramscope.allocator.settings import MIB
from vramscope.allocator.simulation import CachingAllocator
from vramscope.analysis.largest_free import largest_free, of_state
from vramscope.errors import UsageError
from vramscope.model.recording import Recording
from vramscope.model.trace import Action

SIZES = st.sampled_from([500, 70_000, 3 * MIB, 9 * MIB, 30 * MIB])
OPS = st.lists(st.tuples(st.booleans(), SIZES, st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=30)
MAPPED, MADE, ALLOC, REQUEST, COMPLETED = (
    Action.SEGMENT_MAP, Action.SEGMENT_ALLOC, Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED,
)  # fmt: skip


def test_by_hand(recording):
    """6 MiB, of which 1 MiB is taken in the middle: 2 MiB lie free before it and 3 MiB after it."""
    made = recording(
        (MADE, 0, 6 * MIB),
        (ALLOC, 2 * MIB, MIB),
        (ALLOC, 3 * MIB, 3 * MIB),
        (REQUEST, 3 * MIB, 3 * MIB),
        (COMPLETED, 3 * MIB, 3 * MIB),
    )

    found = largest_free(made, [0, 1, 2, 3, 4, 5])

    assert found.instant.tolist() == [1, 2, 3, 4, 5]  # at instant 0 there is no memory of any kind
    assert (found.largest_bytes // MIB).tolist() == [6, 3, 2, 2, 3]
    assert (found.free_bytes // MIB).tolist() == [6, 5, 2, 2, 5]
    assert found.n_free.tolist() == [1, 2, 1, 1, 2]
    assert found.time_ns.tolist() == made.trace.time_ns.tolist()


def test_size_classes_and_segments_do_not_add_up_to_one_block(recording):
    """Two free segments beside one another stay two; a small one is of another class."""
    found = largest_free(
        recording((MADE, 0, 20 * MIB), (MADE, 20 * MIB, 4 * MIB), (MADE, 24 * MIB, 2 * MIB)), [3]
    )

    assert found.is_large.tolist() == [False, True]
    assert (found.largest_bytes // MIB).tolist() == [2, 20]
    assert (found.free_bytes // MIB).tolist() == [2, 24]


def test_unasked_the_moments_are_looked_at_when_the_driver_was_asked(recording):
    made = recording(*[(MADE, 4 * MIB * k, 4 * MIB) for k in range(400)], *[(ALLOC, 0, 512)] * 600)

    instants = largest_free(made).instant

    assert set(range(400 - 64, 400)) <= set(instants.tolist())
    assert instants[-1] == 1000
    assert len(set(instants.tolist())) <= 128


def test_an_instant_that_does_not_exist_is_refused():
    assert len(largest_free(Recording())) == 0
    with pytest.raises(UsageError, match="instants 0 to 0"):
        largest_free(Recording(), [1])


@given(OPS)
def test_a_request_as_large_needs_no_driver_and_a_longer_one_does(ops):
    """What the predicting allocator does next, for every pool and stream that has a free large block."""
    for chosen in (lambda size: size, lambda size: size + 512):
        for pool, stream in ((0, 0), (0, 1), (1, 0), (1, 1)):
            events = []
            allocator = CachingAllocator(emit=lambda *row, events=events: events.append(row))
            live = []
            for is_alloc, size, on, of in ops:
                if is_alloc or not live:
                    live.append(allocator.malloc(size, on, of))
                else:
                    allocator.free(live.pop(len(live) // 2))
            found = of_state(allocator.snapshot(0, 0))
            mine = (found.pool == pool) & (found.stream == stream) & found.is_large
            if not mine.any() or found.largest_bytes[mine][0] <= MIB:
                continue
            events.clear()

            allocator.malloc(chosen(int(found.largest_bytes[mine][0])), stream, pool)

            asked = any(row[0] == MADE for row in events)
            assert asked == (chosen(0) > 0)
