"""Each private pool has the bytes of its own events, and the name that marks and torch's id give it."""

import pytest

from vramscope.analysis.private_pools import PoolKind, pool_names, private_pools
from vramscope.model.marks import MarkKind, Marks, pool_number
from vramscope.model.recording import Recording
from vramscope.model.snapshot import Blocks, BlockState, Segments, Snapshot
from vramscope.model.trace import Action, Trace

MIB = 1 << 20
POOLS = ((0, 0), (3, 0), (0, 1), (0, 2))


def recorded(**more):
    """A block of each pool: that of pool 1 was there before, those of 0 and 2 come, and 2 gives back."""
    gives = (Action.SEGMENT_ALLOC, Action.ALLOC)
    takes = (Action.FREE_REQUESTED, Action.FREE_COMPLETED, Action.SEGMENT_FREE)
    return Recording(
        initial=Snapshot(
            segments=Segments.of(address=[0x1000], size=[4 * MIB], pool=[1]),
            blocks=Blocks.of(address=[0x1000], size=[MIB], segment=[0], state=[int(BlockState.ALLOCATED)]),
        ),
        trace=Trace.of(
            action=[*gives, *gives, *takes],
            address=[0x10 << 20] * 2 + [0x20 << 20] * 5,
            size=[20 * MIB, 3 * MIB, 2 * MIB, MIB, MIB, MIB, 2 * MIB],
            block_size=[20 * MIB, 3 * MIB, 2 * MIB, MIB, MIB, MIB, 2 * MIB],
            pool=[0, 0, 2, 2, 2, 2, 2],
        ),
        pools=POOLS,
        **more,
    )


def test_each_pool_has_the_bytes_of_its_own_events():
    first, second = private_pools(recorded())

    assert [each.name.id for each in (first, second)] == [(3, 0), (0, 1)]
    assert [first.levels.at(instant) for instant in (0, 7)] == [(MIB, 4 * MIB)] * 2
    assert [second.levels.at(instant) for instant in range(8)] == [
        (0, 0), (0, 0), (0, 0), (0, 2 * MIB), (MIB, 2 * MIB), (0, 2 * MIB), (0, 2 * MIB), (0, 0),
    ]  # fmt: skip
    assert (second.peak_allocated_bytes, second.peak_reserved_bytes) == (MIB, 2 * MIB)


@pytest.mark.parametrize(
    ("kinds", "kind", "words"),
    [
        ([], PoolKind.UNKNOWN, "pool (0, 1)"),
        ([MarkKind.MEM_POOL], PoolKind.MEM_POOL, "pool (0, 1): MemPool of net/train.py:10"),
        ([MarkKind.GRAPH_POOL] * 2, PoolKind.GRAPH, "pool (0, 1): CUDA graph of net/train.py:10"),
        # A graph that is captured into a MemPool of the program.
        (
            [MarkKind.MEM_POOL, MarkKind.GRAPH_POOL],
            PoolKind.GRAPH,
            "pool (0, 1): CUDA graph of net/train.py:11",
        ),
    ],
)
def test_a_pool_is_named_by_what_made_it(kinds, kind, words):
    names = ("", "/home/me/net/train.py:10", "/home/me/net/train.py:11")
    marks = Marks.of(
        kind=kinds, value=[pool_number(0, 1)] * len(kinds), name=list(range(1, len(kinds) + 1)), names=names
    )

    found = pool_names(recorded(marks=marks))[2]

    assert (found.kind, str(found)) == (kind, words)


def test_the_id_alone_shows_a_graph_without_a_pool_of_its_own():
    assert [each.kind for each in pool_names(recorded())] == [
        PoolKind.UNKNOWN, PoolKind.GRAPH, PoolKind.UNKNOWN, PoolKind.UNKNOWN,
    ]  # fmt: skip
