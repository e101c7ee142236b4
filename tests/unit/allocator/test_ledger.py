"""Led forward a few events at a time, the ledger arrives where the snapshot is, with the replay's sizes."""

from dataclasses import replace
from itertools import pairwise

import captures
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramscope.allocator.ledger import Ledger
from vramscope.allocator.settings import MIB, Settings
from vramscope.capture.cuda.gap import bridge
from vramscope.formats.torch_snapshot import read
from vramscope.model.snapshot import Snapshot
from vramscope.model.trace import Action, Trace

BASE = 1 << 40
A, R, C = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED


def settings_of(recording):
    return Settings.from_snapshot(recording.process.allocator, "2.11")


def pieces(trace, n):
    edges = np.linspace(0, len(trace), n + 1).astype(int)
    return [trace.rows(slice(low, high)) for low, high in pairwise(edges)]


@pytest.mark.parametrize("path", captures.genuine()[::2], ids=lambda path: path.name)
def test_genuine_histories_in_pieces_end_at_their_snapshots(path):
    for recording in read(path).recordings:
        settings = settings_of(recording)
        # Late starts: sizes that rewinding had to guess are no matter of the ledger's.
        ledger, end = Ledger(recording.initial, settings), Ledger(recording.final, settings)
        bare = replace(recording.trace, block_size=np.zeros(len(recording.trace), "i8"))

        sizes = np.concatenate([ledger.advance(piece) for piece in pieces(bare, 7)])

        assert np.array_equal(sizes, recording.trace.block_size)
        assert ledger.totals == end.totals
        assert ledger.pending == end.pending
        assert {at: block[:4] for at, block in ledger.blocks.items()} == {
            at: block[:4] for at, block in end.blocks.items()
        }
        assert {at: part[:3] for at, part in ledger.segments.items()} == {
            at: part[:3] for at, part in end.segments.items()
        }
        assert ledger.pages.keys() == end.pages.keys()
        assert ledger.n_contradictions == 0


def test_what_cannot_be_counts_for_nothing(trace_of):
    ledger = Ledger(Snapshot(), Settings())

    sizes = ledger.advance(
        trace_of(
            (C, BASE, 100), (R, BASE, 100), (A, BASE, 100), (A, BASE, 600), (R, BASE, 100), (R, BASE, 100)
        )
    )

    assert sizes.tolist() == [0, 0, 512, 0, 512, 0]
    assert ledger.totals == (100, 0, 512, 0)
    assert ledger.n_contradictions == 4


def test_a_record_without_free_requested_gives_the_bytes_back(trace_of):
    ledger = Ledger(Snapshot(), Settings())

    ledger.advance(trace_of((A, BASE, 100), (C, BASE, 100)))

    assert ledger.totals == (0, 0, 0, 0)


# States in which blocks, pending or not, lie in segments and mapped pages.
@st.composite
def ledgers(draw):
    ledger = Ledger(Snapshot(), Settings())
    rows = []
    for segment in range(3):
        base, size = BASE + 64 * MIB * segment, draw(st.sampled_from([0, 2, 20, 40])) * MIB
        if size:
            made = draw(st.sampled_from([Action.SEGMENT_ALLOC, Action.SEGMENT_MAP])) if segment else 3
            rows.append((made, base, size))
            for slot in range(3):
                address, asked = base + slot * 512 * 1024, draw(st.sampled_from([0, 500, 1024]))
                rows += [(A, address, asked)] if asked else []
                rows += [(R, address, asked)] if asked and draw(st.booleans()) else []
    names = ("action", "address", "size")
    ledger.advance(Trace.of(**dict(zip(names, zip(*rows, strict=True), strict=True))) if rows else Trace.of())
    return ledger


def held(ledger):
    return ledger.blocks, ledger.pending, ledger.segments, ledger.pages, ledger.totals


@given(ledgers(), ledgers())
def test_a_bridge_leads_from_any_state_to_any_other(before, after):
    missing = bridge(before, after, 7)
    sizes = before.advance(replace(missing, block_size=np.zeros(len(missing), "i8")))

    assert sizes.tolist() == missing.block_size.tolist()
    assert held(before) == held(after)
    assert before.n_contradictions == 0


PLACES = st.integers(0, 3).map(lambda slot: BASE + slot * 4 * MIB)
MOVES = st.one_of(
    st.tuples(st.just((A,)), PLACES, st.sampled_from([500, 1024, 700 * 1024, 3 * MIB])),
    st.tuples(st.sampled_from([(R, C), (R, C), (R,), (C,)]), PLACES, st.just(500)),
    st.tuples(st.sampled_from([(Action.SEGMENT_ALLOC,), (Action.SEGMENT_FREE,)]), PLACES, st.just(4 * MIB)),
)


@given(st.lists(MOVES, max_size=40))
def test_a_batch_does_what_its_events_do_one_at_a_time(moves):
    rows = [(action, address, size) for actions, address, size in moves for action in actions]
    trace = Trace.of(**dict(zip(("action", "address", "size"), zip(*rows, strict=True), strict=False)))
    whole, single = Ledger(Snapshot(), Settings()), Ledger(Snapshot(), Settings())

    sizes = whole.advance(trace)

    one_at_a_time = [int(single.advance(piece)[0]) for piece in pieces(trace, len(trace))] if rows else []
    assert sizes.tolist() == one_at_a_time
    assert held(whole) == held(single)
    assert whole.n_contradictions == single.n_contradictions
