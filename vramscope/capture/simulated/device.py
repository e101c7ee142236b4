"""The simulated device, and the queue of what happens on it.

Events come from any thread and from within any code (a weak reference calls back wherever the garbage
collector runs), so no event may wait: each enters one queue by a single call of C code, which no signal
handler interrupts. The order of the queue is the order of events. The queue is emptied on background threads,
which no signal handler interrupts, at each training step and each flush.
"""

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import chain
from time import time_ns
from types import FrameType
from typing import Any

from vramscope.allocator.ledger import Ledger
from vramscope.allocator.levels import inactive_split_bytes
from vramscope.allocator.settings import Settings
from vramscope.allocator.simulation import CachingAllocator, OutOfMemory
from vramscope.capture import Options
from vramscope.capture.cuda.gap import bridge
from vramscope.capture.hooks.modules import NONE, ModuleLog
from vramscope.capture.hooks.stretches import Stretches
from vramscope.capture.log import HolderRow, LabelRow, MarkRow, NoteLog, StackLog, drained
from vramscope.capture.simulated.stacks import CallPath, StackWalker
from vramscope.capture.simulated.storages import Life, Storages
from vramscope.capture.undisturbed import undisturbed
from vramscope.model.codes import QUANTITIES, NoteCode
from vramscope.model.holders import Word
from vramscope.model.marks import ANY_THREAD, MarkKind, Note, Phase
from vramscope.model.trace import Action
from vramscope.units import format_bytes

_LONGEST_WAIT_S = 5.0
_WITH_LEVELS = frozenset(range(MarkKind.MARK))
"""Marks at which steps and phases may begin and end."""
PLACE, REPLACE, MARK, LABEL, HOLDER, SWITCH = range(6)
"""Kinds of queued events."""


class SimulatedDevice:
    """A model of CUDA's allocator, and everything that is known about its blocks."""

    modules: ModuleLog
    _stretches: Stretches | None
    _storages: Storages
    """The storages that the source knows."""

    def __init__(self, settings: Settings, options: Options) -> None:
        self._allocator = CachingAllocator(settings, options.capacity_bytes, self._emit)
        self._queue: deque[Any] = deque()
        """Queued events: a Life whose storage is gone; or a kind, a time and five arguments.

        The entries are not tuples: Python's garbage collector would count waiting tuples, run more often than
        without vramscope, and free the program's cycles earlier.
        """
        # A weak reference calls it, and Python discards what is raised there: if a signal handler ran within
        # Python code, both the user's Ctrl-C and the event would be lost. So it is a function of C.
        self.died = self._queue.append
        self._placed: dict[int, Life] = {}
        """Every storage with a block, by the address of its C++ object."""
        self._module = NONE
        self._stacks = StackLog()
        self._walker = StackWalker(self._stacks.builder, options.stack_depth)
        self._at_work = threading.RLock()
        self._is_initial = True
        self._n_events = 0
        self._now = 0
        self._stack_id = 0
        # One flat list: the garbage collector would count tuples, run more often than without vramscope, and
        # free the program's cycles earlier.
        self._rows: list[int] = []
        self._marks: list[MarkRow] = []
        self._labels: list[LabelRow] = []
        self._holders: list[HolderRow] = []
        self._notes = NoteLog()
        self._maker = ANY_THREAD
        """The thread of the last event."""
        self._every = options.every
        self._before: Ledger | None = None
        """The state at the last event, where the steps of now get none."""
        self._levels: list[tuple[int, ...]] = []
        self._highest = self._most = (0,) * len(QUANTITIES)

    def allocated_bytes(self) -> int:
        """Allocated bytes on the simulated device now; takes about 50 µs after emptying the queue."""
        self._catch_up()
        return self._allocator.allocated_bytes

    def address(self, storage: Any) -> int:
        """The current address of a storage's block; 0 if it has none."""
        self._catch_up()
        life = self._placed.get(storage._cdata)
        return 0 if life is None else life.address

    def inactive_split_bytes(self) -> Mapping[int, int]:
        """Bytes in free pieces of used segments of the simulated device."""
        self._catch_up()
        with self._at_work:
            state = self._allocator.snapshot(self._n_events, self._now)
        return {0: inactive_split_bytes(state)}

    def _catch_up(self) -> None:
        """Empty the queue, on any thread; this never waits for the disk."""
        undisturbed(self._work, _LONGEST_WAIT_S)

    def _work(self) -> None:
        with self._at_work:
            # In the order of the kinds.
            events = (self._place, self._replace, self._mark, self._label, self._hold, self._switch)
            queue, take = self._queue, self._queue.popleft
            while queue:
                kind = take()
                if type(kind) is Life:
                    self._release(kind)
                    continue
                now = take()
                if now > self._now:  # noqa: PLR1730 -- max() costs more than the event's row
                    self._now = now
                events[kind](take(), take(), take(), take(), take())

    def _place(self, life: Life, n_bytes: int, path: CallPath | None, module: int, _: None) -> None:
        if life.cdata in self._placed:
            return  # seen twice
        if module != self._module:
            self._module = module
            # Those that only call others, too: no allocation is theirs.
            for index in [*drained(self.modules.untold), module]:
                self._mark(int(MarkKind.MODULE), int(Phase.OTHER), 0, NONE, self.modules.names[index])
        self._placed[life.cdata] = life
        self._switch_to(life.maker)
        self._malloc(life, n_bytes, path)

    def _switch_to(self, maker: int) -> None:
        """Mark that the next events are of another thread; a free is of the thread that allocated."""
        if maker != self._maker:
            self._maker = maker
            self._mark(int(MarkKind.THREAD), int(Phase.OTHER), maker, 0, "")

    def _malloc(self, life: Life, n_bytes: int, path: CallPath | None) -> None:
        self._stack_id = stack_id = 0 if path is None else self._walker.stack_id(path)
        try:
            life.address = self._allocator.malloc(n_bytes, stack_id=stack_id)
        except OutOfMemory:
            self._overflow()
            life.address = self._allocator.malloc(n_bytes, stack_id=stack_id)

    def _release(self, life: Life) -> None:
        # A Ctrl-C may have come before its address was set.
        if self._placed.get(getattr(life, "cdata", 0)) is not life:
            return  # seen twice, or no longer recorded
        del self._placed[life.cdata]
        if self._storages.live.get(life.cdata) is life:
            # Another thread may be adding its successor right now, which is then seen again.
            self._storages.live.pop(life.cdata, None)
        self._stack_id = 0
        if life.address:
            self._switch_to(life.maker)
            self._now = max(self._now, time_ns() if not self._queue else self._now)
            self._allocator.free(life.address)
            life.address = 0

    def _replace(self, cdata: int, n_bytes: int, path: CallPath | None, _: None, __: None) -> None:
        """Resize a storage like CUDA: allocate the new block, copy the content, free the old block."""
        life = self._placed.get(cdata)
        if life is None:
            return
        old = life.address
        life.address = 0
        self._switch_to(life.maker)
        if n_bytes:
            self._malloc(life, n_bytes, path)
        if old:
            self._stack_id = 0
            self._allocator.free(old)

    def _mark(self, kind: int, phase: int, thread: int, value: int, name: str) -> None:
        self._marks.append((kind, phase, self._now, self._n_events, thread, value, name))
        if self._every is not None and kind in _WITH_LEVELS:
            now = self._level()
            self._levels.append((self._now, *now, *map(max, now, self._highest)))
            self._most = tuple(map(max, self._most, self._highest))
            self._highest = now

    def _level(self) -> tuple[int, ...]:
        return tuple(getattr(self._allocator, f"{name}_bytes") for name in QUANTITIES)

    def rest(self, note: Note) -> bool:
        """Emit no events from now on, and look at no stack."""
        self._queue.extend((SWITCH, time_ns(), 0, note, None, None, None))
        return True

    def levels_so_far(self) -> tuple[dict[object, int], int]:
        """The highest levels so far, and what is allocated."""
        self._catch_up()
        return dict(enumerate(map(max, self._most, self._highest))), self._allocator.allocated_bytes

    def go_on(self) -> None:
        """Emit events again, first those that lead to now."""
        self._queue.extend((SWITCH, time_ns(), 1, None, None, None, None))

    def _path(self, frame: FrameType | None) -> CallPath | None:
        if frame is None:
            return None
        # Where memory may run out, or ran out and switched events on, each step's lines are wanted.
        is_wanted = self._before is None or self._allocator.capacity_bytes
        is_wanted = is_wanted or self._stretches is None or self._stretches.is_on
        return self._walker.path(frame) if is_wanted else None

    def _switch(self, is_on: int, note: Note | None, __: None, ___: None, ____: None) -> None:
        """Emit events from now on, first those that lead from the last one to now; or none from now on."""
        if bool(is_on) == (self._before is None):
            return
        if note is not None:
            self._notes.once(note)
        state = Ledger(self._allocator.snapshot(self._n_events, self._now), self._allocator.settings)
        if self._before is not None:
            missing = bridge(self._before, state, self._now)
            self._n_events += len(missing)
            columns = (column.tolist() for _, column in missing.columns())
            self._rows.extend(chain.from_iterable(zip(*columns, strict=True)))
        self._before = None if is_on else state
        self._marks.append((int(MarkKind.EVENTS), int(Phase.OTHER), self._now, self._n_events, 0, is_on, ""))

    def _label(self, cdata: int, category: int, element_bytes: int, name: str, _: None) -> None:
        life = self._placed.get(cdata)
        if life is not None and life.address and self._before is None:
            self._labels.append((self._n_events, life.address, category, element_bytes, name))

    def _hold(self, cdata: int, words: Sequence[Word], _: None, __: None, ___: None) -> None:
        life = self._placed.get(cdata)
        if life is not None and life.address and self._before is None:
            self._holders.append((self._n_events, life.address, words))

    def _emit(self, action: Action, address: int, size: int, block_size: int, stream: int, pool: int) -> None:
        if self._every is not None and action == Action.ALLOC:
            self._highest = tuple(map(max, self._level(), self._highest))
        if action == Action.OOM:
            self._switch(1, None, None, None, None)
        if not self._is_initial and self._before is None:
            self._n_events += 1
            self._rows.extend((action, self._now, address, size, block_size, stream, pool, self._stack_id))

    def _overflow(self) -> None:
        """Remove the capacity of the full simulated device, as the program on the CPU continues."""
        capacity, reserved = self._allocator.capacity_bytes or 0, self._allocator.reserved_bytes
        self._marks.append(
            (MarkKind.OOM, 0, self._now, self._n_events, threading.get_ident(), capacity - reserved, "")
        )
        was = "was full before recording began" if self._is_initial else "was full"
        text = f"the simulated device of {format_bytes(capacity)} {was}; recorded on without a limit"
        self._notes.once(Note(NoteCode.SIMULATED_OOM, text, capacity))
        self._allocator.capacity_bytes = None
