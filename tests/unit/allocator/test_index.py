"""A state out of the index is the state that sorting the whole past gives."""

import captures
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramscope.allocator.replay import state_at
from vramscope.allocator.settings import Settings
from vramscope.allocator.state_index import StateIndex
from vramscope.formats.torch_snapshot import read
from vramscope.model.snapshot import Blocks, BlockState, Segments, Snapshot
from vramscope.model.trace import Action, Trace

FILES = [*captures.genuine(), *captures.snapshots()]
EVENTS = st.lists(st.tuples(st.sampled_from(list(Action)), st.integers(0, 5)), max_size=60)


def assert_same(found, truth):
    assert (found.event, found.time_ns) == (truth.event, truth.time_ns)
    for table in ("segments", "blocks"):
        for name, column in getattr(truth, table).columns():
            assert np.array_equal(getattr(getattr(found, table), name), column), (truth.event, table, name)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_equals_the_replay_of_shared_files(path):
    for recording in read(path).recordings:
        trace, initial = recording.trace, recording.initial
        index = StateIndex(trace, initial, least_distance=100, least_moves=5)
        instants = np.random.default_rng(1).integers(0, len(trace) + 1, 12)
        for k in (0, len(trace), *instants.tolist()):
            assert_same(index.at(k), state_at(trace, initial, k, Settings()))


@given(EVENTS, st.integers(1, 7))
def test_it_equals_the_replay_of_any_record_even_one_that_contradicts_itself(events, distance):
    initial = Snapshot(
        segments=Segments.of(address=[0, 8192], size=[4096, 4096]),
        blocks=Blocks.of(
            segment=[0, 0, 1],
            address=[1024, 2048, 8192],
            size=[512, 512, 1024],
            requested_size=[500, 400, 1000],
            state=[BlockState.ALLOCATED, BlockState.PENDING_FREE, BlockState.ALLOCATED],
        ),
    )
    is_segment = [Action.SEGMENT_ALLOC <= action <= Action.SEGMENT_UNMAP for action, _ in events]
    sizes = [4096 if reserves else 1000 for reserves in is_segment]
    trace = Trace.of(
        action=[action for action, _ in events],
        time_ns=range(1, len(events) + 1),
        address=[place * (4096 if r else 1024) for (_, place), r in zip(events, is_segment, strict=True)],
        size=sizes,
        block_size=[4096 if reserves else 1024 for reserves in is_segment],
    )
    index = StateIndex(trace, initial, least_distance=distance, least_moves=distance)

    for k in range(len(trace) + 1):
        assert_same(index.at(k), state_at(trace, initial, k, Settings()))


def test_lists_of_the_living_are_never_longer_than_the_distance_between_them():
    n = 1000
    trace = Trace.of(
        action=[Action.ALLOC] * n, address=[512 * i for i in range(n)], size=[1] * n, block_size=[512] * n
    )

    initial = Snapshot(segments=Segments.of(address=[0], size=[512 * n]))
    index = StateIndex(trace, initial, least_distance=1)

    assert sum(map(len, index._checkpoints)) <= n
    assert len(index.at(n - 1).blocks) == n
