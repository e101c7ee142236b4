"""A recording that is followed in pieces has what one that was fed once has, and what the books say."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vramscope.analysis import analyses
from vramscope.analysis.findings import collect
from vramscope.analysis.fragmentation import parts_over_time
from vramscope.analysis.lifetimes import lifetimes
from vramscope.following import growing
from vramscope.following.growing import Following
from vramscope.model.codes import QUANTITIES
from vramscope.model.snapshot import BlockState

OPS = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 4096)), max_size=60)
SIZES = st.lists(st.integers(1, 9), max_size=8)


def versions(recording, sizes):
    """The recording as it was after pieces of these sizes, and whole at the end."""
    ends = [0, *np.cumsum(sizes, dtype="i8").tolist(), len(recording.trace)]
    return [replace(recording, trace=recording.trace.rows(slice(end))) for end in ends]


def fed(recording, sizes, chapter=growing.CHAPTER):
    with_chapters = Following(recording, finds=True, chapter=chapter)
    for version in versions(recording, sizes):
        with_chapters.follow(version)
    return with_chapters


def assert_same(found, truth):
    for name, column in truth.columns():
        assert np.array_equal(getattr(found, name), column), name


@given(OPS, st.integers(0, 12), SIZES)
def test_levels_and_peaks_of_pieces_are_those_of_the_books(play, ops, n_before, sizes):
    played = play(ops, n_before)
    whole, following = played.recording, fed(played.recording, sizes)

    assert_same(following.totals(whole), whole.timeline())
    for column, name in enumerate(QUANTITIES):
        values = [row[column] for row in played.totals]
        assert getattr(following.totals(whole), f"{name}_bytes").tolist() == values
        assert following.fullest(whole, name) == values.index(max(values))


@given(OPS, st.integers(0, 12), SIZES)
def test_live_blocks_at_every_instant_are_those_of_the_books(play, ops, n_before, sizes):
    played = play(ops, n_before)
    following = fed(played.recording, sizes, chapter=5)

    for instant, live in enumerate(played.live):
        state = following.state_at(played.recording, instant)
        blocks = state.blocks.rows(state.blocks.state == BlockState.ALLOCATED)
        assert set(blocks.address.tolist()) == {address for address, _ in live}
        assert state.event == instant
        assert int(state.segments.size.sum()) == played.totals[instant][3]


@given(OPS, st.integers(0, 12), SIZES)
def test_lives_and_parts_of_pieces_are_those_of_one_piece(play, ops, n_before, sizes):
    whole = play(ops, n_before).recording
    results = fed(whole, sizes).results(whole)

    assert_same(results[lifetimes], lifetimes(whole))
    assert_same(results[parts_over_time], parts_over_time(whole))


@given(OPS, st.integers(0, 12), SIZES)
def test_findings_of_pieces_are_those_of_one_piece(play, ops, n_before, sizes):
    whole = play(ops, n_before).recording
    offered = analyses()

    assert fed(whole, sizes).findings(whole) == collect(lambda name: offered[name].run(whole))
