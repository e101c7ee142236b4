"""The answer is what the predicting allocator then does."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramscope.allocator.settings import MIB, Settings
from vramscope.allocator.simulation import (
    CachingAllocator,
    OutOfMemory,
)
from vramscope.analysis.would_fit import BlockSource, fit_of, would_fit
from vramscope.errors import UsageError
from vramscope.model.device import Device
from vramscope.model.marks import Note
from vramscope.model.recording import Recording
from vramscope.model.trace import Action, Trace

SIZES = st.sampled_from([500, 70_000, MIB, 3 * MIB, 9 * MIB, 11 * MIB, 30 * MIB])
OPS = st.lists(st.tuples(st.booleans(), SIZES, st.integers(0, 1)), max_size=30)


def played(ops, settings, capacity):
    """An allocator after some mallocs and frees, and what it reports from now on."""
    events = []
    allocator = CachingAllocator(settings, capacity, emit=lambda *row: events.append(row))
    live = []
    for is_alloc, size, stream in ops:
        if is_alloc or not live:
            try:
                live.append(allocator.malloc(size, stream))
            except OutOfMemory:
                continue
        else:
            allocator.free(live.pop(len(live) // 2))
    events.clear()
    return allocator, events


@given(OPS, SIZES, st.sampled_from([Settings(), Settings(max_split_size=20 * MIB)]))
def test_the_allocator_does_what_was_predicted(ops, size, settings):
    allocator, events = played(ops, settings, 100 * MIB)
    said = fit_of(allocator.snapshot(0, 0), size, settings, (0, 0), 100 * MIB)

    try:
        address = allocator.malloc(size)
    except OutOfMemory:
        assert said.fits is False
        return
    actions = [row[0] for row in events]

    assert said.fits
    assert {
        BlockSource.BLOCK: actions == [Action.ALLOC],
        BlockSource.NEW_SEGMENT: actions == [Action.SEGMENT_ALLOC, Action.ALLOC],
        BlockSource.AFTER_RELEASE: Action.SEGMENT_FREE in actions,
    }[said.origin]
    assert said.from_driver_bytes == sum(row[2] for row in events if row[0] == Action.SEGMENT_ALLOC)
    assert said.address == (address if said.origin is BlockSource.BLOCK else None)


@given(OPS)
def test_what_is_releasable_is_what_empty_cache_gives_back(ops):
    for settings in (Settings(), Settings(expandable_segments=True)):
        allocator, _ = played([(a, size, 0) for a, size, _ in ops], settings, None)
        said = fit_of(allocator.snapshot(0, 0), 512, settings, (0, 0), None)
        before = allocator.reserved_bytes

        allocator.empty_cache()

        assert said.releasable_bytes == before - allocator.reserved_bytes


@given(OPS, SIZES)
def test_an_expandable_segment_grows_by_what_is_missing(ops, size):
    settings = Settings(expandable_segments=True)
    allocator, events = played([(a, n, 0) for a, n, _ in ops], settings, None)
    said = fit_of(allocator.snapshot(0, 0), size, settings, (0, 0), 1 << 50)

    allocator.malloc(size)

    assert said.from_driver_bytes == sum(row[2] for row in events if row[0] == Action.SEGMENT_MAP)


def test_what_a_private_pool_keeps_is_not_given_back():
    allocator = CachingAllocator(Settings())
    for pool in (0, 1):
        allocator.free(allocator.malloc(3 * MIB, 0, pool))

    said = fit_of(allocator.snapshot(0, 0), 30 * MIB, Settings(), (0, 0), 50 * MIB)

    assert (said.origin, said.releasable_bytes, said.reserved_bytes) == (
        BlockSource.AFTER_RELEASE,
        20 * MIB,
        40 * MIB,
    )
    assert fit_of(allocator.snapshot(0, 0), 31 * MIB, Settings(), (0, 0), 50 * MIB).fits is False


def test_segments_that_can_grow_do_so_where_no_settings_were_exported():
    allocator = CachingAllocator(Settings(expandable_segments=True))
    address = allocator.malloc(19 * MIB)
    allocator.free(allocator.malloc(12 * MIB))

    recording = Recording(initial=allocator.snapshot(0, 0), device=Device(total_bytes=1 << 40))
    said = would_fit(recording, 30 * MIB, instant=0)

    assert address
    assert (said.origin, said.from_driver_bytes) == (BlockSource.NEW_SEGMENT, 20 * MIB)


def test_an_unknown_capacity_is_not_guessed(recording):
    made = recording((Action.SEGMENT_ALLOC, 0, 2 * MIB), (Action.ALLOC, 0, 512))

    found = would_fit(made, 30 * MIB, instant=2)
    known = would_fit(replace(made, device=Device(total_bytes=40 * MIB)), 30 * MIB, instant=2)

    assert (found.fits, found.origin, found.from_driver_bytes) == (None, BlockSource.UNKNOWN, 30 * MIB)
    assert (known.fits, known.origin) == (True, BlockSource.NEW_SEGMENT)


def test_nothing_is_not_a_request():
    with pytest.raises(UsageError, match="at least 1 byte"):
        would_fit(Recording(), 0)


def test_unasked_it_is_about_the_largest_request_that_failed_or_not(recording):
    made = recording((Action.SEGMENT_ALLOC, 0, 2 * MIB), (Action.ALLOC, 0, 700), (Action.OOM, 0, 5 * MIB))

    assert would_fit(made).n_bytes == 5 * MIB


def test_the_limit_of_the_process_is_its_capacity():
    trace = Trace.of(action=[Action.SEGMENT_ALLOC, Action.ALLOC], address=[1 << 32] * 2,
                     size=[100 * MIB] * 2, block_size=[100 * MIB] * 2)  # fmt: skip
    limit = Note("limit", "120 MiB allowed", 120 * MIB)
    recording = Recording(trace=trace, device=Device(total_bytes=1000 * MIB), notes=(limit,))

    assert would_fit(recording, 15 * MIB).fits is True
    assert would_fit(recording, 30 * MIB).fits is False
