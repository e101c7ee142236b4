"""Totals that cannot be are noted with the event where they begin; a whole recording has none."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import vramscope
from vramscope.allocator.replay.contradictions import contradictions
from vramscope.model.counters import Counters
from vramscope.model.recording import Recording
from vramscope.model.snapshot import Blocks, BlockState, Segments, Snapshot
from vramscope.model.trace import Action, Trace

SAMPLES = Path(__file__).parents[3] / "sample_traces"
ALLOC, REQUESTED, COMPLETED = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED
SEGMENT = Action.SEGMENT_ALLOC


def trace(*rows: tuple[int, int], start_ns: int = 1000) -> Trace:
    """Rows of action and bytes, a microsecond apart."""
    actions, sizes = zip(*rows, strict=True)
    times = start_ns + 1000 * np.arange(len(rows))
    return Trace.of(action=actions, size=sizes, block_size=sizes, time_ns=times, address=[7] * len(rows))


WHOLE = trace((SEGMENT, 4096), (ALLOC, 512), (ALLOC, 1024), (REQUESTED, 512), (COMPLETED, 512))


def found(recording: Recording) -> list[tuple[str, int]]:
    return [(note.code, note.value) for note in contradictions(recording)]


def state(event: int, *, reserved: int, allocated: int) -> Snapshot:
    blocks = Blocks.of(size=[allocated], requested_size=[allocated], state=[BlockState.ALLOCATED])
    return Snapshot(event, 0, Segments.of(size=[reserved]), blocks)


@pytest.mark.parametrize("name", ["transformer", "gan-retain-graph", "transformer-cuda"])
def test_a_whole_recording_has_none(name: str) -> None:
    (recording,) = vramscope.load(SAMPLES / name).recordings

    assert contradictions(recording) == []


def test_a_recording_without_events_has_none() -> None:
    assert contradictions(Recording()) == []


def test_frees_of_what_was_never_there_are_noted_where_the_total_falls_below_zero() -> None:
    recording = Recording(trace=trace((SEGMENT, 4096), (ALLOC, 512), (COMPLETED, 512), (COMPLETED, 512)))

    assert found(recording) == [("negative_total", 4)]
    assert "requested bytes fall below zero at event 4 (down to -512 B)" in contradictions(recording)[
        0
    ].text.replace("−", "-")


def test_more_in_use_than_reserved_is_noted_where_it_begins() -> None:
    recording = Recording(trace=trace((ALLOC, 512), (SEGMENT, 1024), (ALLOC, 1024)))

    # After the first event 512 bytes are in use and none are reserved.
    assert found(recording) == [("active_above_reserved", 1)]


def test_a_state_before_the_first_event_that_is_gone_is_noted() -> None:
    """What the attack on the stored files did: without ``states-0.arrows`` the run began empty."""
    (recording,) = vramscope.load(SAMPLES / "transformer").recordings

    assert contradictions(replace(recording, initial=Snapshot())) != []


def test_an_end_that_is_not_the_reported_state_is_noted() -> None:
    recording = Recording(trace=WHOLE, final=state(5, reserved=4096, allocated=1536))

    # 1,024 bytes are left by the events: 512 fewer than reported.
    assert found(recording) == [("end_differs", -512)]
    assert found(replace(recording, final=state(5, reserved=4096, allocated=1024))) == []


def samples(rows: list[tuple[int, int, int]], drift: int = 0) -> Counters:
    times, allocated, reserved = zip(*rows, strict=True)
    return Counters.of(
        time_ns=times,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        reserved_drift_bytes=[drift] * len(rows),
    )


def long_trace(n_events: int = 30_000) -> Trace:
    """Allocations of one byte, none freed: instant k holds k - 1 bytes."""
    return trace((SEGMENT, 1 << 20), *[(ALLOC, 1)] * (n_events - 1))


def sample_at(event: int, more: int = 0) -> tuple[int, int, int]:
    return 1000 + 1000 * event + 1, event + more, 1 << 20


def test_counters_that_agree_with_the_events_are_nothing_to_note() -> None:
    rows = [sample_at(event) for event in range(100, 29_000, 1000)]

    assert found(Recording(trace=long_trace(), counters=samples(rows))) == []


def test_counters_that_disagree_are_noted_with_the_event_where_it_begins() -> None:
    """From event 15,000 on torch has 9,000 bytes more than the events make."""
    rows = [sample_at(event, more=9000 * (event >= 15_000)) for event in range(0, 29_000, 1000)]

    assert found(Recording(trace=long_trace(), counters=samples(rows))) == [("counters_differ", 15_001)]


def test_two_samples_between_two_events_are_no_contradiction() -> None:
    rows = [sample_at(event, more=9000 * (event >= 27_000)) for event in range(0, 29_000, 1000)]

    assert found(Recording(trace=long_trace(), counters=samples(rows))) == []


def test_samples_that_moved_while_they_were_taken_are_not_compared() -> None:
    rows = [sample_at(event, more=9000) for event in range(0, 29_000, 1000)]

    assert found(Recording(trace=long_trace(), counters=samples(rows, drift=512))) == []


def test_samples_after_the_last_event_of_a_killed_process_are_not_compared() -> None:
    rows = [sample_at(event, more=9000) for event in range(31_000, 60_000, 1000)]

    assert found(Recording(trace=long_trace(), counters=samples(rows))) == []
