"""requested + rounding + pending + inactive split + releasable = reserved, at every instant."""

from hypothesis import given
from hypothesis import strategies as st

from vramscope.analysis.identity import identity, identity_of
from vramscope.analysis.timeline import timeline
from vramscope.model.recording import Recording
from vramscope.model.snapshot import Blocks, BlockState, Segments, Snapshot

OPS = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 4096)), max_size=60)


def test_each_block_falls_into_one_part():
    state = Snapshot(
        segments=Segments.of(address=[0, 4096], size=[3000, 1000]),
        blocks=Blocks.of(
            segment=[0, 0, 0, 1],
            address=[0, 1000, 1500, 4096],
            size=[1000, 500, 1500, 1000],
            requested_size=[900, 450, 0, 0],
            state=[BlockState.ALLOCATED, BlockState.PENDING_FREE, BlockState.INACTIVE, BlockState.INACTIVE],
        ),
    )

    found = identity_of(state)

    assert found.parts == {
        "requested": 900, "rounding": 100, "pending": 500, "inactive_split": 1500, "releasable": 1000
    }  # fmt: skip
    assert found.reserved_bytes == 4000


def test_what_is_free_in_a_private_pool_is_a_part_of_its_own():
    """A graph's pool has 600 free beside a block, and a free segment of 2,000: both stay."""
    state = Snapshot(
        segments=Segments.of(address=[0, 4096, 8192], size=[500, 1000, 2000], pool=[0, 1, 1]),
        blocks=Blocks.of(
            segment=[0, 1, 1, 2],
            address=[0, 4096, 4496, 8192],
            size=[500, 400, 600, 2000],
            requested_size=[0, 400, 0, 0],
            state=[BlockState.INACTIVE, BlockState.ALLOCATED, BlockState.INACTIVE, BlockState.INACTIVE],
        ),
    )

    found = identity_of(state)

    assert found.parts == {
        "requested": 400, "rounding": 0, "pending": 0, "inactive_split": 0, "releasable": 500,
        "private_pools": 2600,
    }  # fmt: skip
    assert found.reserved_bytes == 3500


def test_nothing_reserved_has_no_parts():
    assert identity(Recording()).reserved_bytes == 0


@given(OPS, st.integers(0, 30), st.integers(0, 60))
def test_the_parts_sum_up_to_the_totals(play, ops, n_before, instant):
    recording = play(ops, n_before).recording
    instant = min(instant, len(recording.trace))
    totals = timeline(recording)

    found = identity(recording, instant)

    assert found.reserved_bytes == totals.reserved_bytes[instant]
    assert found.requested_bytes + found.rounding_bytes == totals.allocated_bytes[instant]
    assert found.pending_bytes == totals.active_bytes[instant] - totals.allocated_bytes[instant]
