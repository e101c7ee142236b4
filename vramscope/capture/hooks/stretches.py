"""Decides between which marks the allocator's events are recorded, where only some steps have them."""

import threading
from collections.abc import Callable
from tracemalloc import is_tracing
from typing import Any, TypeAlias

from vramscope.capture.hooks.open_phases import Listener, listen, thread
from vramscope.capture.undisturbed import unheld
from vramscope.model.codes import NoteCode
from vramscope.model.marks import MarkKind, Note, Phase

_ALWAYS, _MOST_OF_ONE_TURN, _AUTO_INTERVAL = 2, 24, 100
_MOST_BESIDE = 8
"""Number of steps that have events beside those that are due, because memory is to rise in them."""
_TRACED_STEPS = 8
"""Number of steps after which the levels are looked at while tracemalloc makes that slow."""
_RISE = 1 / 16
"""A peak that is higher by less is nothing new, so that memory which grows is it ever less often."""
_BEGINS = frozenset({Phase.FORWARD, Phase.BACKWARD, Phase.EVAL, Phase.DATA, Phase.LOSS})
_NOTE = (
    "recorded with every={}: between the steps that have events only levels and peaks are known, by torch's "
    "counters. Lines, tensors and leaks are those of the steps with events"
)
Levels: TypeAlias = tuple[dict[object, int], int]


class _Between(Listener):
    """Listens where no events are recorded: marks alone are of interest."""

    def __init__(self, listener: Listener) -> None:
        self.failed, self.mark = listener.failed, listener.mark  # type: ignore[method-assign]


class _Rhythm:
    """Finds at what distance steps follow each other in which memory rises above all levels before."""

    def __init__(self) -> None:
        self._top = self._latest = self._gap = 0
        self.next = 0
        """The step that is to rise; 0 where no distance came twice."""

    def see(self, step: int, level: int) -> None:
        """Take the *level* at the end of a step."""
        if level > self._top:
            gap, self._top, self._latest = step - self._latest, level, step
            self.next, self._gap = step + gap if gap == self._gap > 1 else 0, gap


class StepEnds:
    """Finds the one mark of each step where a sample tells the peaks of the step, and of no other."""

    _has_stepped = _is_zeroed = False

    def see(self, kind: int, phase: int) -> bool:
        """Whether a step ends here: with its optimizer, or the zero_grad after it, if that came last time."""
        if phase == Phase.ZERO_GRAD:
            self._is_zeroed |= self._has_stepped
            return self._has_stepped and kind == MarkKind.PHASE_END
        self._has_stepped = kind == MarkKind.PHASE_END and phase == Phase.OPTIMIZER
        was_zeroed, self._is_zeroed = self._is_zeroed, self._is_zeroed and not self._has_stepped
        return kind == MarkKind.STEP or (self._has_stepped and not was_zeroed)


class Stretches:
    """Switches events on and off between the steps of one recording."""

    def __init__(
        self, every: int | str, source: Any, listener: Listener, levels: Callable[[], Levels]
    ) -> None:
        """Let *source* rest, unless it says no, and go on: first with events that lead to now.

        *levels* reads the highest levels so far, by any name, and the allocated bytes.
        """
        self._is_auto = isinstance(every, str)
        self._interval = _AUTO_INTERVAL if isinstance(every, str) else every
        self._note = Note(NoteCode.SOME_STEPS, _NOTE.format(every), self._interval)
        self._highest: dict[object, int] = {}
        self._has_evaluated = False
        self._source, self._levels = source, levels
        self._rhythm, self._waits, self._n_beside = _Rhythm(), False, 0
        self._listeners = _Between(listener), listener
        self.is_on = True
        """Whether events are recorded now."""
        self._lock = threading.RLock()
        self._is_wanted, self._are_reported = True, False
        self._n_ended = self._first = self._latest = self._closer = self._n_since = 0

    def before(self, kind: MarkKind, phase: Phase, value: int) -> None:
        """Switch events on or off where the mark that comes next says so: it ends or begins a step."""
        begins = kind == MarkKind.PHASE_BEGIN
        if not begins and self._ends_step(kind, phase, value):
            self._n_ended += 1
            self._is_wanted = self._is_due()
        if begins and self._is_auto and phase == Phase.EVAL and not self._has_evaluated:
            self._is_wanted = self._has_evaluated = True
        # What follows a step, such as zero_grad, may belong to it.
        if self._is_wanted != self.is_on and (
            self._is_wanted or kind == MarkKind.ENTER or (begins and phase in _BEGINS)
        ):
            unheld(self.go_on if self._is_wanted else self._rest)

    def _is_due(self) -> bool:
        """Whether the next step is to have events; one that is due waits for the next rise of memory."""
        n = self._n_ended
        if not self._is_auto:
            return n < _ALWAYS or n % self._interval == 0
        is_looked_at = n % _TRACED_STEPS == 0 or not is_tracing()
        self._waits |= (is_looked_at and self._has_risen()) or n & (n - 1) == 0 or n % self._interval == 0
        is_beside = n == self._rhythm.next > 0 and self._n_beside < _MOST_BESIDE
        self._n_beside += is_beside and not self._waits
        is_due = n >= self._rhythm.next and (self._waits or is_beside)  # a leak soon has its line
        self._waits &= not is_due
        return is_due

    def _has_risen(self) -> bool:
        """Whether a peak is higher than all before."""
        now, level = self._levels()
        self._rhythm.see(self._n_ended - 1, level)
        has_risen = any(value > self._highest.get(key, 0) * (1 + _RISE) for key, value in now.items())
        if has_risen:
            self._highest = {key: max(value, self._highest.get(key, 0)) for key, value in now.items()}
        return has_risen

    def go_on(self) -> None:
        """Record events from now on."""
        with self._lock:
            if not self.is_on:
                self._source.go_on()
                self._switched(is_on=True)

    def _rest(self) -> None:
        with self._lock:
            if self.is_on and self._source.rest(self._note):
                self._switched(is_on=False)

    def _switched(self, *, is_on: bool) -> None:
        listen(self._listeners[is_on])
        self.is_on = is_on

    def _ends_step(self, kind: MarkKind, phase: Phase, value: int) -> bool:
        if kind == MarkKind.STEP:
            self._n_ended, self._are_reported = self._n_ended if self._are_reported else 0, True
            return True
        if kind != MarkKind.PHASE_END or phase != Phase.OPTIMIZER or self._are_reported:
            return False
        # An optimizer in a phase of torch's is a part of that: of a scaler's step, or of a backward.
        return all(opened.phase == Phase.USER for opened in thread.open) and self._ends_turn(value)

    def _ends_turn(self, optimizer: int) -> bool:
        """Whether an update ends a turn of several optimizers: after it the first one steps again."""
        if not self._first or self._n_since >= _MOST_OF_ONE_TURN:
            self._first = self._closer = optimizer
        elif optimizer == self._first != self._latest:
            self._closer = self._latest
        self._latest = optimizer
        self._n_since = 0 if optimizer == self._closer else self._n_since + 1
        return optimizer == self._closer
