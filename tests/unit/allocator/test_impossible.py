"""What a record claims and cannot be goes uncounted, and a note says so."""

import pytest

from vramscope.allocator.replay import reconstruct
from vramscope.allocator.settings import Settings
from vramscope.model.recording import Recording
from vramscope.model.trace import Action, Trace

MIB = 1 << 20
HELD = (Action.SEGMENT_ALLOC, 2 * MIB, 2 * MIB)


def reconstructed(*events):
    action, address, size = zip(*events, strict=True)
    return reconstruct(Trace.of(action=action, address=address, size=size), None, Settings())


def totals(made):
    return Recording(trace=made.trace, initial=made.initial).timeline()


def codes(made):
    return {note.code: note.value for note in made.notes}


def test_a_free_that_names_another_size_frees_what_was_allocated():
    made = reconstructed(
        HELD,
        (Action.ALLOC, 2 * MIB, 1000),
        (Action.FREE_REQUESTED, 2 * MIB, 1000),
        (Action.FREE_COMPLETED, 2 * MIB, 99_999),
    )

    assert totals(made).requested_bytes.tolist() == [0, 0, 1000, 1000, 0]
    assert codes(made) == {"size_contradiction": 1}


@pytest.mark.parametrize("again", [512, 1024])
def test_a_block_handed_out_again_was_back_from_its_request_on(again):
    made = reconstructed(
        HELD,
        (Action.ALLOC, 2 * MIB, 512),
        (Action.FREE_REQUESTED, 2 * MIB, 512),
        (Action.ALLOC, 2 * MIB, again),
    )

    assert totals(made).active_bytes.tolist() == [0, 0, 512, 0, again]
    assert totals(made).allocated_bytes.tolist() == [0, 0, 512, 0, again]
    assert codes(made) == {"no_completion": 1}


def test_a_block_still_waiting_at_the_end_stays_pending():
    made = reconstructed(HELD, (Action.ALLOC, 2 * MIB, 512), (Action.FREE_REQUESTED, 2 * MIB, 512))

    assert totals(made).active_bytes.tolist() == [0, 0, 512, 512]
    assert not made.notes


def test_blocks_over_one_another_count_only_as_far_as_the_segment_reaches():
    made = reconstructed(HELD, (Action.ALLOC, 2 * MIB, MIB), (Action.ALLOC, 2 * MIB + 512, 2 * MIB - 512))

    assert totals(made).active_bytes.tolist() == [0, 0, MIB, MIB]
    assert codes(made) == {"gap": 1, "no_room": 1}


def test_a_segment_given_back_under_a_block_stays():
    made = reconstructed(HELD, (Action.ALLOC, 2 * MIB, 512), (Action.SEGMENT_FREE, 2 * MIB, 2 * MIB))

    assert totals(made).reserved_bytes.tolist() == [0, 2 * MIB, 2 * MIB, 2 * MIB]
    assert codes(made) == {"segment_contradiction": 1}


def test_without_any_segment_blocks_are_counted_all_the_same():
    made = reconstructed((Action.ALLOC, 2 * MIB, 512), (Action.ALLOC, 4 * MIB, 512))

    assert totals(made).active_bytes.tolist() == [0, 512, 1024]
    assert not made.notes
