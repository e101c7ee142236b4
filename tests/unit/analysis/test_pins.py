"""What keeps mostly free segments: the blocks, their births, and the lines that allocated them."""

from pathlib import Path

import captures
import numpy as np
import pytest

import vramscope
from vramscope.allocator.state_index import StateIndex
from vramscope.analysis.lifetimes import lifetimes
from vramscope.analysis.pins import pinning_lines, pins, pins_of
from vramscope.formats.torch_snapshot import read
from vramscope.model.snapshot import BlockState
from vramscope.model.stacks import stacks_of
from vramscope.model.trace import Action
from vramscope.steps.innermost import phases_at, phases_of

SEGMENT, ALLOC = Action.SEGMENT_ALLOC, Action.ALLOC
KIB = 1 << 10
SAMPLES = Path(__file__).parents[3] / "sample_traces"


def test_lines_are_summed_over_the_segments_that_they_keep(recording):
    """Three segments of 64 KiB: ``keep`` has a block in two, ``cache`` one beside it in the second."""
    stacks = stacks_of(
        [("keep", "a.py", 1)], [("cache", "b.py", 2)], [("keep", "a.py", 1), ("main", "m.py", 9)]
    )
    found = recording(
        (SEGMENT, 1 << 20, 64 * KIB), (SEGMENT, 2 << 20, 64 * KIB), (SEGMENT, 3 << 20, 64 * KIB),
        (ALLOC, 1 << 20, 4 * KIB, 1), (ALLOC, 2 << 20, 8 * KIB, 2), (ALLOC, (2 << 20) + 8 * KIB, 4 * KIB, 4),
        stacks=stacks,
    )  # fmt: skip

    pinned = pins(found, 6)
    keep, cache = pinning_lines(found.stacks, pinned)

    assert pinned.total_bytes == 60 * KIB + 52 * KIB
    assert (keep.n_blocks, keep.block_bytes, keep.n_segments, keep.kept_bytes) == (2, 8 * KIB, 2, 112 * KIB)
    assert (cache.n_blocks, cache.block_bytes, cache.n_segments, cache.kept_bytes) == (
        1,
        8 * KIB,
        1,
        52 * KIB,
    )
    assert found.stacks.frame(keep.stack_id).file == "a.py"


@pytest.mark.parametrize("path", captures.genuine(), ids=lambda path: path.name)
def test_births_are_the_same_from_the_allocations_and_from_all_events(path):
    for recording in read(path).recordings:
        known, index = lifetimes(recording), StateIndex(recording.trace, recording.initial)
        for instant in np.linspace(1, len(recording.trace), 5).astype(int).tolist():
            state = index.at(instant)
            one, other = pins_of(recording, state), pins_of(recording, state, known)

            assert all(np.array_equal(column, getattr(other, name)) for name, column in one.columns())
            assert (one.alloc_event < instant).all()
            is_known = one.alloc_event >= 0
            born = recording.trace.rows(one.alloc_event[is_known])
            assert (born.action == ALLOC).all()
            assert (born.address == one.address[is_known]).all()
            in_use = state.blocks.address[state.blocks.state != BlockState.INACTIVE]
            assert np.isin(one.address, in_use).all()


def test_the_captures_have_pinning_blocks_to_compare():
    pinned = [
        len(pins(recording, instant))
        for path in captures.genuine()
        for recording in read(path).recordings
        for instant in np.linspace(1, len(recording.trace), 5).astype(int).tolist()
    ]

    assert np.count_nonzero(pinned) > len(pinned) // 4


@pytest.mark.parametrize("n_asked", [40, 400])
@pytest.mark.parametrize("name", ["transformer", "transformer-cuda", "gan-retain-graph"])
def test_the_phase_of_some_events_is_that_of_all(name, n_asked):
    (recording,) = vramscope.load(SAMPLES / name).recordings
    n_events = len(recording.trace)
    some = np.random.default_rng(1).integers(0, n_events, n_asked)
    found = phases_at(recording.phases, some)

    assert found.tolist() == phases_of(recording.phases, n_events)[some].tolist()
    assert len(np.unique(found)) > 5
