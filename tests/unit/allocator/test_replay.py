"""Block sizes and the initial state, worked out by hand; contradictions become notes."""

from dataclasses import replace

import numpy as np
import pytest

from vramscope.allocator.replay import reconstruct, state_at
from vramscope.allocator.settings import MIB, Settings
from vramscope.model.snapshot import BlockState
from vramscope.model.trace import Action, Trace

A, R, C = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED
SEGMENT, RELEASE, MAP, UNMAP = (
    Action.SEGMENT_ALLOC,
    Action.SEGMENT_FREE,
    Action.SEGMENT_MAP,
    Action.SEGMENT_UNMAP,
)
USED, PENDING, FREE = BlockState
BASE = 1 << 40
KIB = 1024


def sizes(blocks):
    return list(zip(blocks.size.tolist(), blocks.state.tolist(), strict=True))


def test_a_small_block_is_its_request_rounded(trace_of):
    trace = trace_of((SEGMENT, BASE, 2 * MIB), (A, BASE, 100), (R, BASE, 100), (C, BASE, 100))

    found = reconstruct(trace, None, Settings())

    assert found.trace.block_size.tolist() == [2 * MIB, 512, 512, 512]
    assert found.notes == ()


def test_a_large_block_keeps_a_remainder_of_up_to_1_mib(trace_of):
    trace = trace_of(
        (SEGMENT, BASE, 20 * MIB),
        (A, BASE, 9 * MIB),
        (A, BASE + 9 * MIB, 10 * MIB),
        (R, BASE, 9 * MIB),
        (C, BASE, 9 * MIB),
        (A, BASE, 8 * MIB),
    )

    found = reconstruct(trace, None, Settings())

    assert (found.trace.block_size // MIB).tolist() == [20, 9, 11, 9, 9, 9]


def test_with_expandable_segments_nothing_is_kept(trace_of):
    trace = trace_of((MAP, BASE, 20 * MIB), (A, BASE, 19 * MIB + 1))

    found = reconstruct(trace, None, Settings())

    assert found.trace.block_size.tolist() == [20 * MIB, 19 * MIB + 512]


def test_an_initial_block_takes_the_narrow_gap_after_it(trace_of, snapshot_of):
    """9.5 MiB that were requested as 9, then a block that stays: less than 1 MiB cannot be a block."""
    final = snapshot_of(
        (BASE, 20 * MIB, [(9 * MIB + MIB // 2, 0, FREE), (10 * MIB + MIB // 2, 10 * MIB, USED)])
    )

    found = reconstruct(trace_of((R, BASE, 9 * MIB), (C, BASE, 9 * MIB)), final, Settings())

    assert found.trace.block_size.tolist() == [9 * MIB + MIB // 2] * 2
    assert sizes(found.initial.blocks) == [(9 * MIB + MIB // 2, USED), (10 * MIB + MIB // 2, USED)]
    assert found.initial.blocks.requested_size.tolist() == [9 * MIB, 10 * MIB]
    assert found.notes == ()


def test_a_block_placed_after_an_initial_one_shows_its_size(trace_of, snapshot_of):
    final = snapshot_of((BASE, 20 * MIB, [(20 * MIB, 0, FREE)]))
    behind = BASE + 9 * MIB + MIB // 2
    trace = trace_of(
        (A, behind, 2 * MIB),
        (R, BASE, 9 * MIB),
        (C, BASE, 9 * MIB),
        (R, behind, 2 * MIB),
        (C, behind, 2 * MIB),
    )

    found = reconstruct(trace, final, Settings())

    assert (found.trace.block_size * 2 // MIB).tolist() == [4, 19, 19, 4, 4]
    assert sizes(found.initial.blocks) == [(9 * MIB + MIB // 2, USED), (10 * MIB + MIB // 2, FREE)]
    assert found.notes == ()


def test_a_size_that_nothing_shows_is_noted(trace_of, snapshot_of):
    final = snapshot_of((BASE, 20 * MIB, [(20 * MIB, 0, FREE)]))

    found = reconstruct(trace_of((R, BASE, 9 * MIB), (C, BASE, 9 * MIB)), final, Settings())

    assert sizes(found.initial.blocks) == [(9 * MIB, USED), (11 * MIB, FREE)]
    assert [(note.code, note.value) for note in found.notes] == [("unsure_size", 1)]


def test_a_block_completed_but_not_requested_was_pending(trace_of, snapshot_of):
    final = snapshot_of((BASE, 2 * MIB, [(2 * MIB, 0, FREE)]))
    trace = trace_of((C, BASE, 100), (R, BASE + 512, 100), (C, BASE + 512, 100))

    found = reconstruct(trace, final, Settings())

    assert sizes(found.initial.blocks)[:2] == [(512, PENDING), (512, USED)]


def test_a_record_that_leaves_out_requested_frees_does_not_make_blocks_pending(trace_of, snapshot_of):
    final = snapshot_of((BASE, 2 * MIB, [(2 * MIB, 0, FREE)]))
    trace = trace_of((C, BASE, 100), (A, BASE, 100), (C, BASE, 100))

    assert sizes(reconstruct(trace, final, Settings()).initial.blocks)[0] == (512, USED)


def test_segments_are_rewound(trace_of, snapshot_of):
    """One was there all the time, one came, one went."""
    stayed, came, went = BASE, BASE + 20 * MIB, BASE + 40 * MIB
    final = snapshot_of((stayed, 20 * MIB, [(20 * MIB, 0, FREE)]), (came, 20 * MIB, [(20 * MIB, 0, FREE)]))

    found = reconstruct(trace_of((SEGMENT, came, 20 * MIB), (RELEASE, went, 2 * MIB)), final, Settings())

    assert found.initial.segments.address.tolist() == [stayed, went]
    assert found.initial.segments.is_large.tolist() == [True, False]


def test_mapped_memory_is_rewound(trace_of, snapshot_of):
    """[0, 60) MiB was mapped; the middle was given back and [60, 80) came."""
    final = snapshot_of(
        (BASE, 20 * MIB, [(20 * MIB, 0, FREE)]),
        (BASE + 40 * MIB, 40 * MIB, [(40 * MIB, 0, FREE)]),
        expandable=True,
    )
    trace = trace_of((MAP, BASE + 60 * MIB, 20 * MIB), (UNMAP, BASE + 20 * MIB, 20 * MIB))

    found = reconstruct(trace, final, Settings())
    segments = found.initial.segments

    assert list(zip(segments.address - BASE, segments.size, strict=True)) == [(0, 60 * MIB)]
    assert sizes(found.initial.blocks) == [(60 * MIB, FREE)]
    for k, runs in ((0, [(0, 60)]), (1, [(0, 80)]), (2, [(0, 20), (40, 40)])):
        held = state_at(found.trace, found.initial, k, Settings()).segments
        offsets, lengths = (held.address - BASE) // MIB, held.size // MIB
        assert list(zip(offsets, lengths, strict=True)) == runs


def test_neighbouring_segments_never_merge(trace_of):
    trace = trace_of((SEGMENT, BASE, 20 * MIB), (SEGMENT, BASE + 20 * MIB, 20 * MIB), (A, BASE, 20 * MIB))

    found = reconstruct(trace, None, Settings())

    assert sizes(state_at(found.trace, found.initial, 2, Settings()).blocks) == [(20 * MIB, FREE)] * 2
    assert sizes(state_at(found.trace, found.initial, 3, Settings()).blocks) == [
        (20 * MIB, USED),
        (20 * MIB, FREE),
    ]


def test_the_state_at_every_instant(trace_of):
    trace = trace_of((SEGMENT, BASE, 2 * MIB), (A, BASE, 100), (R, BASE, 100), (C, BASE, 100))
    found = reconstruct(trace, None, Settings())

    states = [state_at(found.trace, found.initial, k, Settings()) for k in range(5)]

    rest = (2 * MIB - 512, FREE)
    assert [sizes(state.blocks) for state in states] == [
        [],
        [(2 * MIB, FREE)],
        [(512, USED), rest],
        [(512, PENDING), rest],
        [(2 * MIB, FREE)],
    ]
    assert states[2].blocks.stack_id.tolist() == [2, 0]
    assert [state.event for state in states] == [0, 1, 2, 3, 4]


def test_a_free_in_no_known_segment_is_not_counted(trace_of):
    found = reconstruct(trace_of((R, BASE, 100), (C, BASE, 100)), None, Settings())

    assert found.trace.block_size.tolist() == [0, 0]
    assert len(found.initial.blocks) == 0
    assert [note.code for note in found.notes] == ["no_segment"]


def test_what_contradicts_itself_is_not_counted(trace_of):
    trace = trace_of(
        (SEGMENT, BASE, 2 * MIB), (A, BASE, 9), (A, BASE, 9), (R, BASE, 9), (C, BASE, 9), (C, BASE, 9)
    )

    found = reconstruct(trace, None, Settings())

    assert found.trace.block_size[1:].tolist() == [512, 0, 512, 512, 0]
    assert [(note.code, note.value) for note in found.notes] == [("contradiction", 2)]


def test_an_end_that_the_events_do_not_reach_is_noted(trace_of, snapshot_of):
    final = snapshot_of((BASE, 2 * MIB, [(512, 77, USED), (2 * MIB - 512, 0, FREE)]))
    trace = trace_of((SEGMENT, BASE, 2 * MIB), (A, BASE, 100))

    notes = reconstruct(trace, final, Settings()).notes

    assert [(note.code, note.value) for note in notes] == [("end_differs", 2)]


def test_the_size_of_a_block_that_is_left_is_taken_from_the_snapshot(trace_of, snapshot_of):
    """A private pool may refuse to split: only the snapshot shows it."""
    final = snapshot_of((BASE, 20 * MIB, [(20 * MIB, 2 * MIB, USED)]))
    trace = trace_of((SEGMENT, BASE, 20 * MIB), (A, BASE, 2 * MIB))

    found = reconstruct(trace, final, Settings())

    assert found.trace.block_size.tolist() == [20 * MIB, 20 * MIB]
    assert [note.code for note in found.notes] == ["other_size"]


def test_of_two_blocks_from_before_in_one_place_the_first_counts(trace_of, snapshot_of):
    final = snapshot_of((BASE, 20 * MIB, [(20 * MIB, 0, FREE)]))
    trace = trace_of((R, BASE, 5 * MIB), (R, BASE + 2 * MIB, 5 * MIB), (R, BASE + 7 * MIB, 5 * MIB))

    found = reconstruct(trace, final, Settings())

    assert (found.trace.block_size // MIB).tolist() == [5, 0, 5]
    assert "no_segment" in [note.code for note in found.notes]


def least(trace: Trace, rises, falls) -> int:
    """The lowest level of what rises and falls at these actions, from a start of 0."""
    sign = np.isin(trace.action, rises).astype("i1") - np.isin(trace.action, falls).astype("i1")
    return int(np.cumsum(sign * trace.block_size).min())


@pytest.mark.parametrize("seed", range(20))
def test_scrambled_records_neither_raise_nor_go_below_zero(seed):
    random = np.random.default_rng(seed)
    n = 400
    trace = Trace.of(
        action=random.integers(0, 9, n),
        address=random.choice(
            np.array([0, BASE, BASE + 512, BASE + 2 * MIB, 2**63 - 512, 2**64 - 1], "u8"), n
        ),
        size=random.choice([0, 1, 512, MIB, 5 * MIB, 2**50], n),
    )
    half = reconstruct(trace, None, Settings())
    final = state_at(half.trace, half.initial, n // 2, Settings())

    for settings in (Settings(), Settings(max_split_size=2 * MIB), Settings(expandable_segments=True)):
        found = reconstruct(replace(trace), final, settings)
        blocks, segments = found.initial.blocks, found.initial.segments
        assert least(found.trace, [A], [R]) + blocks.size[blocks.state == USED].sum() >= 0
        assert least(found.trace, [A], [C]) + blocks.size[blocks.state != FREE].sum() >= 0
        assert least(found.trace, [SEGMENT, MAP], [RELEASE, UNMAP]) + segments.size.sum() >= 0
        state_at(found.trace, found.initial, n, settings)
