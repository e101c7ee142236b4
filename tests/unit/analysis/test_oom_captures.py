"""Out of memory in files of others: each verdict as a person reads it out of the figures, with the reason."""

from pathlib import Path

import captures
import pytest

from vramscope.analysis.oom import ANALYSIS, oom
from vramscope.loading import load
from vramscope.model.finding import Finding
from vramscope.model.recording import Recording
from vramscope.model.snapshot import Blocks, BlockState, Segments, Snapshot
from vramscope.model.trace import Action, Trace

MIB, GIB = 1 << 20, 1 << 30

# In the order of oom_messages.txt. "Pieces": reserved but unallocated, and enough for the request.
MESSAGES = (
    ("fragmentation", "52 MiB lacking; 614 MiB in pieces would have made room"),
    ("fragmentation", "0.34 GiB lacking; 3.35 GiB in pieces"),
    ("oversize", "184 GiB asked of a card of 79"),
    ("other_process", "221 MiB lacking; two others hold 5.7 GiB, pieces are 1.35"),
    ("capacity", "14 MiB lacking; its own 20 GiB fill 21.7, which process is its own is not said"),
    ("other_process", "2.9 GiB lacking; another holds 4.1 GiB"),
    ("capacity", "allocated more than there is: the driver spills to the host"),
    ("fragmentation", "4.3 GiB lacking; 10.3 GiB in pieces"),
    ("capacity", "199 MiB lacking, 20 MiB in pieces"),
    ("outside_torch", "1.7 of 44.5 GiB are reserved; which of six processes is its own is not said"),
    ("other_process", "nothing of its own; another holds 7.75 of 15.5 GiB"),
    ("oversize", "40 GiB asked of a card of 31"),
)  # fmt: skip


def verdict(recording: Recording) -> Finding:
    assert ANALYSIS.findings is not None
    (finding,) = ANALYSIS.findings(oom(recording))
    return finding


def shared(name: str) -> Path:
    if not (captures.OTHERS / name).exists():
        pytest.skip(captures.NO_OTHERS)
    return captures.OTHERS / name


@pytest.mark.parametrize("number", range(len(MESSAGES)))
def test_a_message_is_judged_by_its_own_figures(tmp_path, number):
    texts = shared("oom_messages.txt").read_text().split("\n\n")
    file = tmp_path / "message.txt"
    file.write_text(texts[number])
    expected, why = MESSAGES[number]

    (recording,) = load(file).recordings

    assert len(texts) == len(MESSAGES)
    assert verdict(recording).cause == expected, why


def test_a_training_that_filled_its_card_ran_out_of_capacity():
    # 21.7 GiB in use, 17 MiB in pieces, 252 MiB left on the card: 132 of the 384 MiB were lacking.
    (recording,) = load(shared("snap_t22_oom_vit.json")).recordings

    finding = verdict(recording)

    assert finding.cause == "capacity"
    assert finding.evidence["size"] == 384 * MIB
    assert finding.evidence["lacking"] == 384 * MIB - finding.evidence["device_free"]
    assert finding.evidence["free_here"] < finding.evidence["lacking"]


def test_a_snapshot_without_a_failure_has_no_verdict():
    # Its single event is the marker that torch 2.0 wrote when the snapshot was taken.
    (recording,) = load(shared("snap_t20_legacy_oom_marker.pickle")).recordings

    assert len(oom(recording)) == 0


def test_a_snapshot_taken_late_is_judged_by_what_was_there_just_before():
    # 6 GiB pre-date the trace; when it was taken everything had been let go of.
    segments = Segments.of(address=[1 << 32], size=[6 * GIB], is_large=[True])
    older = Blocks.of(
        address=[1 << 32], size=[6 * GIB], requested_size=[6 * GIB], state=[BlockState.ALLOCATED], segment=[0]
    )
    rows = (
        (Action.SEGMENT_ALLOC, 1 << 34, GIB),
        (Action.ALLOC, 1 << 34, GIB),
        (Action.OOM, 200 * MIB, 500 * MIB),
        (Action.FREE_REQUESTED, 1 << 34, GIB),
        (Action.FREE_COMPLETED, 1 << 34, GIB),
        (Action.FREE_REQUESTED, 1 << 32, 6 * GIB),
        (Action.FREE_COMPLETED, 1 << 32, 6 * GIB),
    )
    action, address, size = zip(*rows, strict=True)
    trace = Trace.of(action=action, address=address, size=size, block_size=size)

    found = oom(Recording(trace=trace, initial=Snapshot(segments=segments, blocks=older)))

    assert (found.allocated_bytes[0], found.reserved_bytes[0], found.size_bytes[0]) == (
        7 * GIB,
        7 * GIB,
        500 * MIB,
    )
    assert found.largest_free_bytes[0] == 0
