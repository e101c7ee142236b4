"""Real and genuine snapshots: forward from the rewound beginning one arrives at what the snapshot says."""

from dataclasses import replace

import captures
import numpy as np
import pytest

from vramscope.allocator.layout import used
from vramscope.allocator.replay import reconstruct, state_at
from vramscope.allocator.settings import MIB, Settings
from vramscope.formats.torch_snapshot import read
from vramscope.model.recording import Recording
from vramscope.model.snapshot import BlockState
from vramscope.model.trace import Action

SCRAMBLED = "snap_anonymised_fixture.pickle"
FILES = [*captures.genuine(), *captures.snapshots()]
COMPLETE = [p for p in captures.genuine() if not any(word in p.name for word in ("late", "ring"))]


def settings_of(recording: Recording) -> Settings:
    return Settings.from_snapshot(recording.process.allocator, "2.11")


@pytest.mark.parametrize("path", [p for p in FILES if p.name != SCRAMBLED], ids=lambda p: p.name)
def test_the_end_is_the_snapshot_block_for_block(path):
    for recording in read(path).recordings:
        end = state_at(recording.trace, recording.initial, len(recording.trace), Settings())

        for name in ("address", "size", "requested_size", "state"):
            assert np.array_equal(getattr(end.blocks, name), getattr(recording.final.blocks, name)), name
        for name in ("address", "size", "stream", "pool", "is_large", "is_expandable"):
            assert np.array_equal(getattr(end.segments, name), getattr(recording.final.segments, name)), name
        codes = {note.code for note in recording.notes}
        assert not codes & {"contradiction", "end_differs", "other_size", "gap", "no_segment"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_active_never_exceeds_reserved(path):
    for recording in read(path).recordings:
        trace, initial = recording.trace, recording.initial
        gained = [Action.SEGMENT_ALLOC, Action.SEGMENT_MAP]
        lost = [Action.SEGMENT_FREE, Action.SEGMENT_UNMAP]
        size = trace.block_size
        reserved = np.where(np.isin(trace.action, gained), size, 0) - np.where(
            np.isin(trace.action, lost), size, 0
        )
        active = np.where(trace.action == Action.ALLOC, size, 0)
        active -= np.where(trace.action == Action.FREE_COMPLETED, size, 0)
        n_reserved = np.cumsum(reserved) + initial.segments.size.sum()
        n_active = np.cumsum(active) + used(initial.blocks).size.sum()

        assert n_active.min(initial=0) >= 0
        assert n_reserved.min(initial=0) >= 0
        assert (n_reserved >= n_active).all()


@pytest.mark.parametrize("path", COMPLETE, ids=lambda p: p.name)
def test_a_late_start_is_rewound_to_what_the_whole_record_says(path):
    """Forget the first third of a complete record: its state is known, and found again."""
    recording = read(path).recordings[0]
    k = len(recording.trace) // 3
    truth = state_at(recording.trace, recording.initial, k, Settings())
    late = recording.trace.rows(slice(k, None))
    blank = replace(late, block_size=np.zeros(len(late), "i8"))

    found = reconstruct(blank, recording.final, settings_of(recording))

    for name in ("address", "size", "stream", "is_expandable"):
        assert np.array_equal(getattr(found.initial.segments, name), getattr(truth.segments, name)), name
    ours, theirs = used(found.initial.blocks), used(truth.blocks)
    assert np.array_equal(ours.address, theirs.address)
    assert np.array_equal(ours.requested_size, theirs.requested_size)
    assert np.array_equal(ours.state, theirs.state)
    missed = theirs.size - ours.size
    n_unsure = sum(note.value for note in found.notes if note.code == "unsure_size")
    assert missed.min() >= 0
    assert missed.max() <= MIB
    assert np.count_nonzero(missed) <= n_unsure


def test_a_scrambled_file_is_reported_not_believed():
    path = captures.OTHERS / SCRAMBLED
    if not path.exists():
        pytest.skip(captures.NO_OTHERS)
    recording = read(path).recordings[0]

    assert "no_segment" in {note.code for note in recording.notes}
    assert (recording.initial.blocks.state != BlockState.INACTIVE).any()
