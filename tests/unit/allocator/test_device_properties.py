"""Whatever a program does: blocks tile segments, totals add up, and the record leads back to the state."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from vramscope.allocator.layout import used
from vramscope.allocator.replay import reconstruct, state_at
from vramscope.allocator.settings import MIB, Settings
from vramscope.allocator.simulation import (
    CachingAllocator,
    OutOfMemory,
)
from vramscope.model.snapshot import BlockState
from vramscope.model.trace import Trace

CONFS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:24",
    "roundup_power2_divisions:4",
    "large_segment_size_mb:64",
    "garbage_collection_threshold:0.5,per_process_memory_fraction:0.9",
)
REQUEST = st.one_of(
    st.integers(1, 3 * 1024 * 1024),
    st.sampled_from([512, MIB, MIB + 1, 9 * MIB + 5, 10 * MIB, 19 * MIB, 20 * MIB - 512, 33 * MIB + 1]),
)
STEP = st.one_of(
    st.tuples(st.just("malloc"), REQUEST, st.integers(0, 1), st.integers(0, 1)),
    st.tuples(st.just("free"), st.integers(0, 99)),
    st.tuples(st.just("share"), st.integers(0, 99)),
    st.tuples(st.sampled_from(["finish", "empty"])),
)
PROGRAM = st.lists(STEP, max_size=60)
SETTINGS = st.builds(Settings.from_conf, st.sampled_from(CONFS), st.sampled_from(["2.9", "2.12", "2.13"]))
CAPACITY = st.sampled_from([None, 96 * MIB])


def run(allocator, program, after=lambda: None, alive=()):
    """Does the steps of a program; what is still alive."""
    alive = [*alive]
    for step in program:
        if step[0] == "malloc":
            with suppress(OutOfMemory):
                alive.append(allocator.malloc(*step[1:]))
        elif step[0] == "free" and alive:
            allocator.free(alive.pop(step[1] % len(alive)))
        elif step[0] == "share" and alive:
            allocator.record_stream(alive[step[1] % len(alive)], 5)
        elif step[0] == "finish":
            allocator.finish_events()
        elif step[0] == "empty":
            allocator.empty_cache()
        after()
    return alive


def check(allocator):
    """The state is one that can be, and the totals are its sums."""
    snapshot = allocator.snapshot(0, 0)
    segments, blocks = snapshot.segments, snapshot.blocks
    end = blocks.address + blocks.size.astype("u8")
    same = blocks.segment[1:] == blocks.segment[:-1]
    assert (end[:-1][same] == blocks.address[1:][same]).all()
    assert (np.bincount(blocks.segment, blocks.size, len(segments)) == segments.size).all()
    assert (segments.address[1:] >= (segments.address + segments.size.astype("u8"))[:-1]).all()
    is_free = blocks.state == BlockState.INACTIVE
    assert not (same & is_free[1:] & is_free[:-1]).any()
    active, pending = ~is_free, blocks.state == BlockState.PENDING_FREE
    assert allocator.reserved_bytes == segments.size.sum()
    assert allocator.active_bytes == blocks.size[active].sum()
    assert allocator.allocated_bytes == blocks.size[active & ~pending].sum()
    assert allocator.requested_bytes == blocks.requested_size[active].sum()
    assert (blocks.requested_size <= blocks.size).all()


def same_state(ours, theirs):
    for table in ("segments", "blocks"):
        one, other = getattr(ours, table), getattr(theirs, table)
        for name, column in one.columns():
            if name != "stack_id":
                assert np.array_equal(column, getattr(other, name)), (table, name)


@settings(deadline=None, max_examples=60)
@given(PROGRAM, SETTINGS, CAPACITY)
def test_at_every_step_the_state_is_sound(program, chosen, capacity):
    allocator = CachingAllocator(chosen, capacity)

    run(allocator, program, lambda: check(allocator))

    assert capacity is None or allocator.reserved_bytes <= capacity


@settings(deadline=None, max_examples=60)
@given(PROGRAM, SETTINGS)
def test_with_everything_freed_every_segment_is_one_free_block(program, chosen):
    allocator = CachingAllocator(chosen)
    alive = run(allocator, program)

    for address in alive:
        allocator.free(address)
    allocator.finish_events()

    snapshot = allocator.snapshot(0, 0)
    assert len(snapshot.blocks) == len(snapshot.segments)
    assert allocator.active_bytes == allocator.allocated_bytes == allocator.requested_bytes == 0
    allocator.retire_pool(1)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0


def recorded(program, chosen, capacity):
    """The record of a program, and the state at the end and at an instant on the way."""
    rows, states = [], []
    allocator = CachingAllocator(chosen, capacity, lambda *row: rows.append(row))
    run(allocator, program, lambda: states.append(allocator.snapshot(len(rows), 0)))
    names = ("action", "address", "size", "block_size", "stream", "pool")
    trace = Trace.of(**dict(zip(names, zip(*rows, strict=True), strict=False)))
    return trace, states or [allocator.snapshot(0, 0)]


@settings(deadline=None, max_examples=100)
@given(PROGRAM, SETTINGS, CAPACITY)
def test_the_record_gives_back_every_block_and_state(program, chosen, capacity):
    trace, states = recorded(program, chosen, capacity)
    blank = replace(trace, block_size=np.zeros(len(trace), "i8"))

    found = reconstruct(blank, states[-1], chosen)

    assert np.array_equal(found.trace.block_size, trace.block_size)
    assert len(found.initial.segments) == 0
    assert found.notes == ()
    for state in states[:: max(len(states) // 5, 1)]:
        same_state(state_at(found.trace, found.initial, state.event, chosen), state)


@settings(deadline=None, max_examples=100)
@given(PROGRAM, SETTINGS, CAPACITY, st.floats(0, 1))
def test_a_record_that_begins_anywhere_is_rewound_to_the_state_there(program, chosen, capacity, part):
    trace, states = recorded(program, chosen, capacity)
    truth = states[int(part * (len(states) - 1))]
    late = trace.rows(slice(truth.event, None))
    blank = replace(late, block_size=np.zeros(len(late), "i8"))

    found = reconstruct(blank, states[-1], chosen)

    unsure = sum(note.value for note in found.notes if note.code == "unsure_size")
    if unsure:  # what nothing shows may be up to 1 MiB larger
        ours, theirs = used(found.initial.blocks), used(truth.blocks)
        assert np.array_equal(ours.address, theirs.address)
        missed = theirs.size - ours.size
        assert 0 <= missed.min() <= missed.max() <= MIB
        assert np.count_nonzero(missed) <= unsure
    else:
        same_state(found.initial, truth)
        assert np.array_equal(found.trace.block_size, late.block_size)
        assert found.notes == ()


def test_a_long_random_program_leads_back_too():
    """Larger than Hypothesis would make it."""
    random = np.random.default_rng(5)
    kinds = random.random(6000)
    program = [
        ("malloc", int(2 ** random.uniform(4, 25)), int(random.integers(3)), 0)
        if kind < 0.5
        else ("free", int(random.integers(1000)))
        if kind < 0.95
        else ("share", int(random.integers(1000)))
        if kind < 0.98
        else ("finish",)
        for kind in kinds
    ]
    trace, states = recorded(program, Settings(), None)

    found = reconstruct(replace(trace, block_size=np.zeros(len(trace), "i8")), states[-1], Settings())

    assert np.array_equal(found.trace.block_size, trace.block_size)
    same_state(state_at(found.trace, found.initial, len(trace), Settings()), states[-1])


UNSHARED = st.lists(STEP.filter(lambda step: step[0] in ("malloc", "free")), max_size=40)
TOLD = st.sampled_from([conf for conf in CONFS if "garbage" not in conf])


@settings(deadline=None)
@given(UNSHARED, PROGRAM, TOLD, st.sampled_from(["2.11", "2.13"]))
def test_what_begins_in_a_state_goes_on_as_if_it_had_been_there_before(before, after, conf, torch):
    """Except what no state holds: who else uses a block, how old a cached one is, torch 2.12's numbers."""
    chosen, events = Settings.from_conf(conf, torch), ([], [])
    first = CachingAllocator(chosen, emit=lambda *event: events[0].append(event))
    alive = run(first, before)
    second = CachingAllocator(chosen, emit=lambda *event: events[1].append(event))
    second.begin_in(first.snapshot(0, 0))
    assert_same_state(first, second)
    events[0].clear()

    for allocator in (first, second):
        run(allocator, after, alive=alive)

    assert events[0] == events[1]
    assert_same_state(first, second)


def test_a_pending_block_of_the_state_still_waits():
    first = CachingAllocator(Settings())
    address = first.malloc(MIB)
    first.record_stream(address, 5)
    first.free(address)
    second = CachingAllocator(Settings())
    second.begin_in(first.snapshot(0, 0))
    assert_same_state(first, second)

    second.finish_events(address)

    assert (second.active_bytes, second.requested_bytes, second.is_pending(address)) == (0, 0, False)


def test_memory_that_was_unmapped_in_the_middle_is_address_space_to_begin_with():
    chosen = Settings(expandable_segments=True)
    first = CachingAllocator(chosen)
    addresses = [first.malloc(20 * MIB) for _ in range(3)]
    first.free(addresses[1])
    first.empty_cache()
    second = CachingAllocator(chosen)
    second.begin_in(first.snapshot(0, 0))
    assert_same_state(first, second)

    assert second.malloc(20 * MIB) == first.malloc(20 * MIB) == addresses[1]
    assert len(second.snapshot(0, 0).segments) == 1


def assert_same_state(first, second):
    for name in ("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes"):
        assert getattr(first, name) == getattr(second, name)
    for table in ("segments", "blocks"):
        ours, theirs = getattr(first.snapshot(0, 0), table), getattr(second.snapshot(0, 0), table)
        for name, column in ours.columns():
            assert np.array_equal(column, getattr(theirs, name)), name
