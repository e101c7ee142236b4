"""Calls of the driver: what each reserved, for which request, and why nothing free served it."""

from typing import Any

import numpy as np
import pytest

import vramscope
from vramscope.allocator.state_index import state_from_nearest
from vramscope.analysis.driver_calls import (
    driver_calls,
    jump_at,
    jump_words,
    largest_jump,
    reserved_by,
)
from vramscope.analysis.folding import fold
from vramscope.model.marks import Steps
from vramscope.model.recording import Recording
from vramscope.model.stacks import StackBuilder
from vramscope.model.trace import Action

MIB = 1 << 20
MADE, GONE, MAPPED, OOM = Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.SEGMENT_MAP, Action.OOM
ALLOC, FREED, DONE = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED


@pytest.fixture
def jumped(recording: Any) -> Recording:
    """Two segments of 20 MiB with a block of 12 and one of 1.5 MiB each; step 1 needs 30 MiB in one piece."""
    stacks = StackBuilder()
    build = stacks.add([("build", "/home/me/net/model.py", 7), ("main", "/home/me/net/train.py", 60)])
    keep = stacks.add([("keep", "/home/me/net/model.py", 9), ("main", "/home/me/net/train.py", 61)])
    again = stacks.add([("keep", "/home/me/net/model.py", 9), ("main", "/home/me/net/train.py", 99)])
    rows: list[tuple[int, ...]] = []
    for i, stack in enumerate((keep, again)):
        base = (i + 1) << 30
        rows += [(MADE, base, 20 * MIB, build), (ALLOC, base, 12 * MIB, build)]
        rows += [(ALLOC, base + 12 * MIB, 3 * MIB // 2, stack)]
    for i in range(2):
        rows += [(FREED, (i + 1) << 30, 12 * MIB), (DONE, (i + 1) << 30, 12 * MIB)]
    rows += [(MADE, 3 << 30, 30 * MIB, keep), (ALLOC, 3 << 30, 30 * MIB, keep)]
    steps = Steps.of(index=[0, 1], start_event=[0, 10], end_event=[10, 12])
    return recording(*rows, stacks=stacks.build(), steps=steps)


def said(recording: Recording, row: int) -> str:
    calls = driver_calls(recording)
    state = state_from_nearest(recording, int(calls.event[row]))
    return jump_words(fold(recording.stacks), jump_at(recording, calls, row, state))


def test_each_call_has_its_request_line_and_step(jumped: Recording) -> None:
    calls = driver_calls(jumped)

    assert calls.event.tolist() == [0, 3, 10]
    assert calls.n_bytes.tolist() == [20 * MIB, 20 * MIB, 30 * MIB]
    assert calls.requested_bytes.tolist() == [12 * MIB, 12 * MIB, 30 * MIB]
    assert calls.step.tolist() == [0, 0, 1]
    assert set(calls.kind.tolist()) == {MADE}


def test_a_jump_says_what_was_free_and_who_keeps_it(jumped: Recording) -> None:
    assert largest_jump(driver_calls(jumped)) == 2
    assert said(jumped, 2) == (
        "cudaMalloc reserved 30.0 MiB for 30.0 MiB requested by keep (net/model.py:9); 37.0 MiB was free "
        "in 4 pieces, the largest 12.0 MiB: enough together, but no piece was large enough; 2 blocks of keep "
        "(net/model.py:9) keep 37.0 MiB of it."
    )
    assert said(jumped, 0).endswith(": nothing of the reserved memory that could serve it was free.")


def test_the_last_jump_up_to_an_instant(jumped: Recording) -> None:
    calls = driver_calls(jumped)

    assert [largest_jump(calls, at) for at in (0, 2, 3, 9, 12)] == [0, 0, 1, 1, 2]
    assert largest_jump(driver_calls(Recording())) == -1


def test_reserved_bytes_by_line_whoever_called_it(jumped: Recording) -> None:
    found = reserved_by(jumped.stacks, driver_calls(jumped))

    assert found.n_bytes.tolist() == [40 * MIB, 30 * MIB]
    assert found.n_calls.tolist() == [2, 1]
    assert found.largest_bytes.tolist() == [20 * MIB, 30 * MIB]
    assert (found.first_event.tolist(), found.last_event.tolist()) == ([0, 10], [3, 10])


def test_mapped_ranges_of_one_request_are_one_call_and_a_retry_is_named(recording: Any) -> None:
    found = driver_calls(
        recording(
            (MAPPED, 0, 2 * MIB), (MAPPED, 2 * MIB, 2 * MIB), (ALLOC, 0, 3 * MIB), (MADE, 1 << 30, 20 * MIB),
            (MADE, 2 << 30, 20 * MIB), (GONE, 1 << 30, 20 * MIB), (GONE, 2 << 30, 20 * MIB),
            (OOM, 0, 64 * MIB),
        )
    )  # fmt: skip

    assert found.n_calls.tolist() == [2, 1, 1, 2]
    assert found.n_bytes.tolist() == [4 * MIB, 20 * MIB, 20 * MIB, 40 * MIB]
    assert found.requested_bytes.tolist() == [3 * MIB, -1, -1, -1]
    assert found.is_retry.tolist() == [False, False, False, True]


@pytest.mark.parametrize("sample", ["transformer", "transformer-cuda", "gan-retain-graph"])
def test_the_calls_sum_up_to_what_is_reserved(sample: str) -> None:
    recording = vramscope.load(f"sample_traces/{sample}").recordings[0]
    calls = driver_calls(recording)
    reserved = recording.timeline().reserved_bytes
    came, went = calls.gains, calls.rows(np.isin(calls.kind, (GONE, Action.SEGMENT_UNMAP)))

    assert int(came.n_bytes.sum() - went.n_bytes.sum()) == int(reserved[-1] - reserved[0])
    assert int(reserved_by(recording.stacks, calls).n_bytes.sum()) == int(came.n_bytes.sum())
