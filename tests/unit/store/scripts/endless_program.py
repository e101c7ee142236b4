"""A program that trains on a model of the allocator and tells every writer the same, in pieces at random."""

import random
import time

import numpy as np

from vramscope.allocator.settings import Settings
from vramscope.allocator.simulation import CachingAllocator
from vramscope.model.counters import Counters
from vramscope.model.holders import Holders
from vramscope.model.marks import Category, Labels, MarkKind, Marks, Phase
from vramscope.model.trace import Action, Trace

PHASES = (Phase.ZERO_GRAD, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
NAMES = ("", "Linear", "AdamW", "weight", "bias", "0.mlp")
KIB = 1024


class Program:
    """Steps of phases, allocations that outlive them, two streams; ``tell`` hands over what is new."""

    def __init__(self, writers, seed, *, expandable=False, device=0, times=None):
        self.random = random.Random(seed)
        self.writers = writers
        self.device = device
        self.n_events = 0
        self._times = times or iter(range(1_700_000_000 * 10**9, 2**62, 1000))
        self._rows, self._marks, self._labels, self._samples = [], [], [], []
        self._paths = []
        self._held, self._step = [], []
        settings = Settings(expandable_segments=expandable)
        self.allocator = CachingAllocator(settings, 1 << 30, self._emit)
        for _ in range(5):
            self._allocate(lasts=True)
        self._rows.clear()
        self.n_events = 0
        initial = self.allocator.snapshot(0, next(self._times))
        for writer in writers:
            writer.stacks([(0, f"f{i}", "x.py", i) for i in range(1, 9)])
            writer.pools([(0, 0)], device)
            writer.state(initial, device, reported=False)

    def run(self, n_steps, *, tell_every=0.2):
        """Steps; *tell_every*: how probable it is after each action that everything is handed over."""
        for _ in range(n_steps):
            for phase in PHASES:
                self._mark(MarkKind.PHASE_BEGIN, phase)
                for _ in range(self.random.randrange(6)):
                    self._act()
                    if self.random.random() < tell_every:
                        self.tell()
                self._mark(MarkKind.PHASE_END, phase)
            for address in self._step:
                self._free(address)
            self._step.clear()
            self._sample()

    def tell(self):
        """Hand over what is new: events, then the labels on them."""
        tables = (
            (Trace, self._rows, {}),
            (Marks, self._marks, {"names": NAMES}),
            (Labels, self._labels, {"names": NAMES}),
            (Counters, self._samples, {}),
        )
        for table, rows, named in tables:
            if rows:
                columns = dict(zip(list(table.DTYPES)[: len(rows[0])], zip(*rows, strict=True), strict=True))
                for writer in self.writers:
                    writer.append(table.of(**columns, **named), self.device)
            rows.clear()
        if self._paths:
            for writer in self.writers:
                writer.append(Holders.of_paths(self._paths), self.device)
        self._paths.clear()

    def state(self):
        """What the allocator holds now."""
        return self.allocator.snapshot(self.n_events, next(self._times))

    def _act(self):
        chosen = self.random.random()
        if chosen < 0.75:
            self._allocate(lasts=chosen < 0.1)
        elif chosen < 0.85 and self._held:
            self._free(self._held.pop(self.random.randrange(len(self._held))))
        elif chosen < 0.9:
            self.allocator.finish_events()
        elif chosen < 0.92:
            self.allocator.empty_cache()
        else:
            self._mark(MarkKind.MODULE, Phase.OTHER, 5)

    def _allocate(self, *, lasts):
        size = self.random.choice((100, 512, 3 * KIB, 700 * KIB, 1500 * KIB, 3 << 20))
        address = self.allocator.malloc(size, self.random.choice((0, 0, 0, 7)), 0, self.random.randrange(8))
        (self._held if lasts else self._step).append(address)
        if self.random.random() < 0.1:
            self.allocator.record_stream(address, 9)
        if self.random.random() < 0.4:
            category = self.random.choice((Category.PARAMETER, Category.GRADIENT, Category.UNKNOWN))
            self._labels.append((self.n_events, address, category, self.random.choice((0, 3, 4))))
        if lasts:
            words = (("local", "kept", "main", "x.py", 3), ("item", self.n_events, "list"))
            self._paths.append((self.n_events, address, words))

    def _free(self, address):
        self.allocator.free(address)

    def _mark(self, kind, phase, name=0):
        self._marks.append((kind, phase, next(self._times), self.n_events, 1, 0, name))

    def _sample(self):
        counts = (self.allocator.allocated_bytes, self.allocator.reserved_bytes)
        self._samples.append((next(self._times), self.n_events, *counts))

    def _emit(self, action, address, size, block_size, stream, pool):
        self.n_events += 1
        stack = self.allocator._stack_id if action == Action.ALLOC else 0
        row = (action, next(self._times), address, size, block_size, stream, pool, stack)
        self._rows.append(row)


def now():
    """Times of a program that runs now."""
    while True:
        yield time.time_ns()


def steps_of(recording):
    """The peaks of every step: index → the four quantities."""
    found = recording.step_peaks()
    rows = {}
    for peaks, steps in ((found.past_per_step, recording.past.steps), (found.per_step, recording.steps)):
        values = np.stack(
            [peaks.requested_bytes, peaks.allocated_bytes, peaks.active_bytes, peaks.reserved_bytes], axis=1
        ).tolist()
        rows |= dict(zip(steps.index.tolist(), values, strict=True))
    return rows


def phases_of(recording):
    """The peaks of every phase of every step: (index, phase) → the four quantities."""
    found = recording.step_peaks()
    rows = {}
    for peaks, steps in ((found.past_per_phase, recording.past.steps), (found.per_phase, recording.steps)):
        for row in zip(*(column.tolist() for _, column in peaks.columns()), strict=True):
            if row[0] >= 0:
                rows[int(steps.index[row[0]]), row[1]] = row[4:]
    return rows
