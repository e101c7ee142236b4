"""What unit tests of several folders share: histories to ask about, some written out by hand, some made by a
toy allocator that keeps its own books.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import pytest

from vramscope.model.rank_summary import DeviceSummary
from vramscope.model.recording import Recording
from vramscope.model.snapshot import Blocks, BlockState, Segments, Snapshot
from vramscope.model.trace import Action, Trace

SLOT = 4096
RESERVING = (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)


class Played(NamedTuple):
    """A recording, and what the toy allocator's own books show at each of its instants."""

    recording: Recording
    totals: list[tuple[int, int, int, int]]
    """Requested, allocated, active, reserved."""
    live: list[set[tuple[int, int]]]
    """Address and event (−1 for before the trace) of every allocated block."""


class _Slot:
    """One segment that holds one block at a time."""

    def __init__(self, number: int) -> None:
        self.address = SLOT * (number + 1)
        self.reserved = False
        self.state = BlockState.INACTIVE
        self.size = self.born = 0

    @property
    def block(self) -> int:
        return -(-self.size // 512) * 512

    def touch(self, amount: int, event: int) -> Action:
        """The next thing that can happen to this slot."""
        if not self.reserved:
            self.reserved = True
            return Action.SEGMENT_ALLOC
        if self.state is BlockState.ALLOCATED:
            self.state = BlockState.PENDING_FREE
            return Action.FREE_REQUESTED
        if self.state is BlockState.PENDING_FREE:
            self.state = BlockState.INACTIVE
            return Action.FREE_COMPLETED
        if amount % 4 == 0:
            self.reserved = False
            return Action.SEGMENT_FREE
        self.state, self.size, self.born = BlockState.ALLOCATED, amount, event
        return Action.ALLOC


def _totals(slots: list[_Slot]) -> tuple[int, int, int, int]:
    active = [slot for slot in slots if slot.state is not BlockState.INACTIVE]
    return (
        sum(slot.size for slot in active),
        sum(slot.block for slot in active if slot.state is BlockState.ALLOCATED),
        sum(slot.block for slot in active),
        SLOT * sum(slot.reserved for slot in slots),
    )


def _snapshot(slots: list[_Slot]) -> Snapshot:
    held = [slot for slot in slots if slot.reserved]
    rows: list[tuple[int, int, int, int, int]] = []
    for at, slot in enumerate(held):
        used = slot.block if slot.state is not BlockState.INACTIVE else 0
        if used:
            rows.append((at, slot.address, used, slot.size, slot.state))
        if used < SLOT:
            rows.append((at, slot.address + used, SLOT - used, 0, BlockState.INACTIVE))
    names = ("segment", "address", "size", "requested_size", "state")
    segments = Segments.of(address=[slot.address for slot in held], size=[SLOT] * len(held))
    columns = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    return Snapshot(segments=segments, blocks=Blocks.of(**columns))


def _play(ops: list[tuple[int, int]], n_before: int) -> Played:
    slots = [_Slot(number) for number in range(8)]
    for number, amount in ops[:n_before]:
        slots[number].touch(amount, -1)
    initial = _snapshot(slots)
    totals, live, rows = [_totals(slots)], [_live(slots)], []
    for event, (number, amount) in enumerate(ops[n_before:]):
        slot = slots[number]
        action = slot.touch(amount, event)
        size, block = (SLOT, SLOT) if action in RESERVING else (slot.size, slot.block)
        rows.append((action, event, slot.address, size, block))
        totals.append(_totals(slots))
        live.append(_live(slots))
    names = ("action", "time_ns", "address", "size", "block_size")
    trace = Trace.of(**{name: [row[i] for row in rows] for i, name in enumerate(names)})
    return Played(Recording(trace=trace, initial=initial), totals, live)


def _live(slots: list[_Slot]) -> set[tuple[int, int]]:
    return {(slot.address, slot.born) for slot in slots if slot.state is BlockState.ALLOCATED}


@pytest.fixture(scope="session")
def play() -> Callable[[list[tuple[int, int]], int], Played]:
    """``play(ops, n_before)``: ops are (slot 0 to 7, bytes 1 to 4096); the first happen before the trace."""
    return _play


def _recording(*rows: tuple[Any, ...], **fields: Any) -> Recording:
    names = ("action", "address", "size", "stack_id")
    full = [(*row, *(0,) * (len(names) - len(row))) for row in rows]
    columns = {name: [row[i] for row in full] for i, name in enumerate(names)}
    trace = Trace.of(
        **columns,
        time_ns=[1000 * (i + 1) for i in range(len(full))],
        block_size=[row[2] if row[0] in RESERVING else -(-row[2] // 512) * 512 for row in full],
    )
    return Recording(trace=trace, **fields)


@pytest.fixture(scope="session")
def recording() -> Callable[..., Recording]:
    """``recording((action, address, size, stack_id), …, field=…)``: blocks are rounded up to 512 bytes."""
    return _recording


@pytest.fixture(scope="session")
def assert_same_device() -> Callable[[DeviceSummary, DeviceSummary], None]:
    """``assert_same_device(found, truth)``: the two summaries are equal, column by column."""

    def check(found: DeviceSummary, truth: DeviceSummary) -> None:
        for field in fields(DeviceSummary):
            here, there = getattr(found, field.name), getattr(truth, field.name)
            if field.name == "steps":
                for name, column in there.columns():
                    assert np.array_equal(getattr(here, name), column), name
            else:
                assert here == there, field.name

    return check
