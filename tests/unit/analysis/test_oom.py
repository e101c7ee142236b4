"""A failed allocation is reported with what the allocator held at that moment."""

import captures
import pytest

import vramscope
from vramscope.analysis.oom import ANALYSIS, oom
from vramscope.model.marks import MarkKind, Marks, Phase, Phases, Steps
from vramscope.model.stacks import stacks_of
from vramscope.model.trace import Action

SEGMENT, ALLOC, OOM = Action.SEGMENT_ALLOC, Action.ALLOC, Action.OOM


def full_device(recording):
    """Two segments of 4 KiB; one block of 1024 in each; then 8 KiB are asked for at step 0, in forward."""
    return recording(
        (SEGMENT, 4096, 4096), (ALLOC, 4096, 1024), (SEGMENT, 16384, 4096), (ALLOC, 16384, 1000),
        (OOM, 0, 8192, 2),
        stacks=stacks_of([("forward", "train.py", 7), ("main", "train.py", 9)]),
        marks=Marks.of(kind=[MarkKind.OOM], event=[5], value=[300]),
        steps=Steps.of(index=[0], start_event=[0], end_event=[5]),
        phases=Phases.of(phase=[Phase.FORWARD], end_event=[5]),
    )  # fmt: skip


def test_a_failure_knows_what_was_asked_for_and_what_was_there(recording):
    failures = oom(full_device(recording))

    assert failures.size_bytes.tolist() == [8192]
    assert failures.allocated_bytes.tolist() == [2048]
    assert failures.reserved_bytes.tolist() == [8192]
    assert failures.largest_free_bytes.tolist() == [3072]
    assert failures.device_free_bytes.tolist() == [300]


def test_the_finding_names_moment_and_line(recording):
    (finding,) = ANALYSIS.findings(oom(full_device(recording)))

    assert finding.claim == (
        "out of memory at step 0 in forward: tried to allocate 8.00 KiB, with 2.00 KiB allocated of 8.00 KiB "
        "reserved, 3.00 KiB in the largest free block, 300 B free on the device. "
        "2.00 MiB were lacking: the 2.00 KiB allocated fill the device"
    )
    assert (finding.file, finding.line, finding.function) == ("train.py", 7, "forward")


def test_without_a_failure_nothing_is_reported(recording):
    failures = oom(recording((SEGMENT, 4096, 4096), (ALLOC, 4096, 1024)))

    assert ANALYSIS.findings(failures) == []


def test_only_the_last_few_of_many_failures_are_reported(recording):
    failures = oom(recording((SEGMENT, 4096, 4096), *[(OOM, 0, 8192)] * 9))

    assert failures.largest_free_bytes.tolist() == [4096] * 9
    assert [finding.evidence["event"] for finding in ANALYSIS.findings(failures)] == [5, 6, 7, 8, 9]


@pytest.mark.skipif(not captures.OTHERS.exists(), reason=captures.NO_OTHERS)
def test_a_real_failure_is_found_in_a_snapshot_that_holds_one():
    """Its trace has one oom entry; the largest free block is that of the snapshot's own blocks then."""
    (recording,) = vramscope.load(captures.OTHERS / "snap_t22_oom_vit.json").recordings

    failures = oom(recording)

    assert len(failures) == 1
    assert failures.size_bytes[0] > failures.largest_free_bytes[0]
    assert failures.reserved_bytes[0] >= failures.allocated_bytes[0] > 0
