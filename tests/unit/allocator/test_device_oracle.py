"""The predicting allocator beside a slow one, written from torch's rules alone: every event is the same.

The slow one has no free lists, no links between blocks and no sorted order: for each request it looks at all
pieces of all segments. Expandable segments, whose free blocks grow, are looked at for what must hold anyway.
"""

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramscope.allocator.settings import MIB, Settings
from vramscope.allocator.simulation import (
    CachingAllocator,
    OutOfMemory,
)
from vramscope.model.snapshot import BlockState
from vramscope.model.trace import Action

VERSIONS = ("2.9", "2.11", "2.12", "2.13")
CONFS = (
    {},
    {"max_split_size_mb": 24},
    {"max_split_size_mb": 20, "max_non_split_rounding_mb": 21},
    {"roundup_power2_divisions": 4},
    {"large_segment_size_mb": 64},
    {"garbage_collection_threshold": 0.4, "per_process_memory_fraction": 0.9},
    {"per_process_memory_fraction": 0.5, "max_split_size_mb": 22},
)
SIZES = st.one_of(
    st.integers(1, 3 * MIB),
    st.sampled_from([1, 512, 513, MIB - 511, MIB, MIB + 1, 2 * MIB, 9 * MIB + 5, 10 * MIB - 512, 10 * MIB]),
    st.sampled_from([19 * MIB, 20 * MIB - 512, 20 * MIB, 21 * MIB, 24 * MIB, 25 * MIB + 1, 33 * MIB + 1]),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("malloc"), SIZES, st.integers(0, 1), st.integers(0, 1)),
        st.tuples(st.just("malloc"), SIZES, st.just(0), st.just(0)),
        st.tuples(st.just("free"), st.integers(0, 99)),
        st.tuples(st.just("share"), st.integers(0, 99)),
        st.tuples(st.sampled_from(["finish", "empty"])),
    ),
    max_size=50,
)
AGAIN = [700, 70_000, MIB, *(n * MIB for n in (3, 6, 9, 12, 20, 21, 22, 24, 26, 30, 41, 44, 45, 46, 47, 60))]
CAPACITY = st.sampled_from([None, 70 * MIB, 150 * MIB])
FREE, USED, PENDING = range(3)


@dataclass(eq=False)
class Piece:
    segment: int
    offset: int
    size: int
    home: tuple[int, bool, int]
    """Pool, whether large, stream."""
    number: int
    state: int = FREE
    requested: int = 0
    is_shared: bool = False
    freed_at: int = 0


class Naive:
    """One list of pieces. An address is (number of the segment, offset in it)."""

    def __init__(self, conf, version, capacity):
        self.conf, self.version, self.capacity = conf, version, capacity
        self.pieces, self.events, self.waiting = [], [], []
        self.n_segments = self.n_pieces = self.n_searches = self.n_retries = 0
        self.longest = conf.get("max_split_size_mb", 1 << 40) * MIB

    # what a program does

    def malloc(self, size, stream, pool):
        need = self.rounded(size)
        home = (pool, need > MIB, stream)
        piece = self.search(home, need) or self.make(home, need)
        if piece is None:
            self.tell(Action.OOM, None, need, 0, home)
            return None
        rest = piece.size - need
        if rest >= 512 if need <= MIB else (need < self.longest and rest > MIB):
            piece = self.split(piece, need)
        piece.state, piece.requested = USED, size
        self.tell(Action.ALLOC, piece, size, piece.size)
        return piece

    def free(self, piece):
        self.tell(Action.FREE_REQUESTED, piece, piece.requested, piece.size)
        if piece.is_shared:
            piece.state = PENDING
            self.waiting.append(piece)
        else:
            self.give_back(piece)

    def share(self, piece, stream):
        piece.is_shared |= stream != piece.home[2]

    def finish(self):
        for piece in self.waiting:
            self.give_back(piece)
        self.waiting = []

    def empty(self):
        self.finish()
        for is_large in (True, False):
            here = [p for p in self.whole() if p.home[:2] == (0, is_large)]
            for piece in sorted(here, key=lambda p: (p.home[2], *self.rank(p))):
                self.release(piece)

    # the rules

    def rounded(self, size):
        steps = self.conf.get("roundup_power2_divisions", 0)
        if steps > 1 and size > 512 * steps:
            power = 1
            while power * 2 <= size:
                power *= 2
            while size % (power // steps):
                size += 1 if size % 512 else min(512, power // steps - size % (power // steps))
            return size
        while size % 512:
            size += 1
        return size

    def rank(self, piece):
        """The order among free pieces of one home."""
        if self.version == "2.13":
            return piece.size, piece.segment, piece.offset
        if self.version == "2.12":
            return piece.size, piece.number, piece.segment, piece.offset
        return piece.size, piece.segment, piece.offset  # segments lie one after the other

    def free_ones(self, home):
        return sorted((p for p in self.pieces if p.state == FREE and p.home == home), key=self.rank)

    def search(self, home, need):
        self.n_searches += home[:2] == (0, True)
        best = next((p for p in self.free_ones(home) if p.size >= need), None)
        if best is None or (need < self.longest <= best.size):
            return None
        wasted = self.conf.get("max_non_split_rounding_mb", 20) * MIB
        return None if need >= self.longest and best.size >= need + wasted else best

    def make(self, home, need):
        self.collect()
        piece = self.ask(home, need)
        if piece is None and "max_split_size_mb" in self.conf and self.release_long(home, need):
            piece = self.ask(home, need)
        if piece is None:
            self.empty()
            self.n_retries += 1
            piece = self.ask(home, need)
        return piece

    def ask(self, home, need):
        size = 2 * MIB if need <= MIB else self.conf.get("large_segment_size_mb", 20) * MIB
        if need >= 10 * MIB:
            size = need
            while size % (2 * MIB):
                size += 512
        limits = [self.capacity, self.allowed()]
        if any(limit is not None and self.reserved() + size > limit for limit in limits):
            return None
        self.n_segments += 1
        self.n_pieces += 1
        piece = Piece(self.n_segments, 0, size, home, self.n_pieces)
        self.pieces.append(piece)
        self.tell(Action.SEGMENT_ALLOC, piece, size, size)
        return piece

    def split(self, piece, need):
        self.n_pieces += 1
        front = Piece(piece.segment, piece.offset, need, piece.home, self.n_pieces)
        piece.offset += need
        piece.size -= need
        self.pieces.append(front)
        return front

    def give_back(self, piece):
        self.tell(Action.FREE_COMPLETED, piece, piece.requested, piece.size)
        piece.state, piece.is_shared, piece.freed_at = FREE, False, self.n_searches
        for other in [p for p in self.pieces if p.segment == piece.segment and p.state == FREE]:
            if other.offset + other.size == piece.offset or piece.offset + piece.size == other.offset:
                piece.offset = min(piece.offset, other.offset)
                piece.size += other.size
                self.pieces.remove(other)

    def whole(self):
        """Free pieces that are all of their segment."""
        return [
            p
            for p in self.pieces
            if p.state == FREE and [q.segment for q in self.pieces].count(p.segment) == 1
        ]

    def release(self, piece):
        self.pieces.remove(piece)
        self.tell(Action.SEGMENT_FREE, piece, piece.size, piece.size)

    def release_long(self, home, need):
        wanted = max(need, self.longest)
        long = [p for p in self.free_ones(home) if p.size >= self.longest]
        for piece in long:
            if piece.size >= wanted:
                self.release(piece)
                return True
        released = 0
        while long and released < wanted:
            released += long[-1].size
            self.release(long.pop())
        return released >= wanted

    def collect(self):
        if self.allowed() is None or "garbage_collection_threshold" not in self.conf:
            return
        excess = self.reserved() - int(self.conf["garbage_collection_threshold"] * self.allowed())
        while excess > 0:
            old = [p for p in self.whole() if p.home[:2] == (0, True)]
            old.sort(key=lambda p: (p.home[2], *self.rank(p)))
            ages = [self.n_searches - p.freed_at for p in old]
            if not old:
                return
            for piece, age in zip(old, ages, strict=True):
                if age >= sum(ages) / len(ages):
                    excess -= piece.size
                    self.release(piece)

    def allowed(self):
        part = self.conf.get("per_process_memory_fraction")
        return None if part is None or self.capacity is None else int(part * self.capacity)

    def reserved(self):
        return sum(p.size for p in self.pieces)

    def tell(self, action, piece, size, block_size, home=None):
        pool, _, stream = home or piece.home
        where = (piece.segment, piece.offset) if piece else None
        self.events.append((action, where, size, block_size, stream, pool))


class Watched:
    """What the predicting allocator answers, with addresses as (number of the segment, offset in it)."""

    def __init__(self, chosen, capacity):
        self.events, self.segments = [], []
        self.allocator = CachingAllocator(chosen, capacity, self.tell)

    def tell(self, action, address, size, block_size, stream, pool):
        if action == Action.SEGMENT_ALLOC:
            self.segments.append(address)
        where = None
        if action != Action.OOM:
            number = sum(start <= address for start in self.segments)
            where = number, address - self.segments[number - 1]
        self.events.append((action, where, size, block_size, stream, pool))


def text_of(conf, *more):
    return ",".join([*(f"{name}:{value}" for name, value in conf.items()), *more])


def check(program, conf, version, capacity):
    slow, alive = Naive(conf, version, capacity), []
    watched = Watched(Settings.from_conf(text_of(conf), version), capacity)
    ours = watched.allocator
    for step in program:
        if step[0] == "malloc":
            with suppress(OutOfMemory):
                address = ours.malloc(*step[1:])
            piece = slow.malloc(*step[1:])
            if piece:
                alive.append((address, piece))
        elif step[0] in ("free", "share") and alive:
            at = step[1] % len(alive)
            address, piece = alive[at]
            if step[0] == "share":
                ours.record_stream(address, 5)
                slow.share(piece, 5)
            else:
                ours.free(address)
                slow.free(piece)
                del alive[at]
        elif step[0] == "finish":
            ours.finish_events()
            slow.finish()
        elif step[0] == "empty":
            ours.empty_cache()
            slow.empty()

        assert watched.events == slow.events

    assert ours.reserved_bytes == slow.reserved()
    assert ours.counts.num_alloc_retries == slow.n_retries
    assert ours.counts.num_ooms == [row[0] for row in slow.events].count(Action.OOM)


@settings(deadline=None, max_examples=60)
@given(STEPS, st.sampled_from(CONFS), st.sampled_from(VERSIONS), CAPACITY)
def test_every_event_is_that_of_the_slow_one(program, conf, version, capacity):
    check(program, conf, version, capacity)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("conf", CONFS, ids=text_of)
def test_every_event_of_long_programs_is_that_of_the_slow_one(conf, version):
    """Sizes that come again, mostly long ones, on a device that is nearly full: each rule is needed often."""
    random = np.random.default_rng(len(text_of(conf)))
    for capacity in (None, 150 * MIB, 300 * MIB):
        program = []
        for _ in range(250):
            kind = random.random()
            if kind < 0.52:
                size = (
                    int(random.choice(AGAIN)) if random.random() < 0.9 else int(random.integers(1, 40 * MIB))
                )
                stream, pool = (random.random(2) < 0.15).astype(int).tolist()
                program.append(("malloc", size, stream, pool))
            elif kind < 0.97:
                program.append(("free", int(random.integers(1000))))
            else:
                program.append((str(random.choice(["share", "finish", "empty"])), int(random.integers(1000))))
        check(program, conf, version, capacity)


@settings(deadline=None, max_examples=80)
@given(STEPS, st.sampled_from(["", "large_segment_size_mb:40", "roundup_power2_divisions:8"]), CAPACITY)
def test_an_expandable_segment_grows_only_where_no_free_block_is_long_enough(program, more, capacity):
    """And then by whole units, as many as were missing."""
    chosen = Settings.from_conf(f"expandable_segments:True,{more}", "2.13")
    events, alive = [], []
    ours = CachingAllocator(chosen, capacity, lambda *row: events.append(row))
    for step in program:
        if step[0] != "malloc":
            if step[0] == "free" and alive:
                ours.free(alive.pop(step[1] % len(alive)))
            continue
        before = ours.snapshot(0, 0)
        need = chosen.rounded(step[1])
        mine = (before.segments.stream == step[2]) & (before.segments.pool == step[3])
        mine &= before.segments.is_large == (need > MIB)
        free = (before.blocks.state == BlockState.INACTIVE) & mine[before.blocks.segment]
        longest = int(before.blocks.size[free].max(initial=0))
        events.clear()

        try:
            alive.append(ours.malloc(*step[1:]))
        except OutOfMemory:
            assert longest < need
            continue

        mapped = [row[2] for row in events if row[0] == Action.SEGMENT_MAP]
        unit = chosen.large_segment_size if need > MIB else 2 * MIB
        assert bool(mapped) == (longest < need)
        assert all(size % unit == 0 for size in mapped)
        assert sum(mapped) < need + unit
