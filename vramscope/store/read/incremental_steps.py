"""``resolve`` for a run that is still growing: finished steps are not searched again.

Resolving takes some µs per mark, so a reader that refreshes every second would soon do nothing else.
Therefore finished steps are found once, provided the remaining marks lead to the same later steps. That is
tested, and all marks are resolved again whenever there are half as many more, or a mark is of a kind not seen
before.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.model.marks import Marks, Phase, Phases, Steps
from vramscope.model.past import SummarizedSteps
from vramscope.model.program import event_threads, resolve
from vramscope.store.read.retained_timeline import with_summarized
from vramscope.store.retention.old_steps import marks_needed_after

LEAST_MARKS = 2000
"""The number of marks that are resolved within two milliseconds."""
_KEPT_STEPS = 6
"""The last steps may still become longer: a ``zero_grad`` belongs to the step before it."""
_ATTEMPTS = 4
_LONGER = 1.5

Found = tuple[Steps, Phases]


@dataclass(frozen=True, slots=True, eq=False)
class _Finished:
    """Steps and phases that need not be searched again."""

    n_whole: int
    """The number of marks when all of them were last resolved."""
    n_marks: int
    """The number of marks when these steps were found."""
    step_rules: frozenset[Any]
    rows: NDArray[Any]
    """The rows of the marks that later steps still need."""
    steps: SummarizedSteps
    phases: Phases


class IncrementalSteps:
    """Resolves marks to which new ones are only appended.

    Parameters
    ----------
    least_marks
        The number of marks from which on finished steps are put aside, and after which that is done again.
    """

    __slots__ = ("_finished", "_least_marks")

    def __init__(self, *, least_marks: int = LEAST_MARKS) -> None:
        self._least_marks = least_marks
        self._finished: _Finished | None = None

    def resolve(self, marks: Marks, n_events: int, end_ns: int) -> Found:
        """Return steps and phases like ``model.program.resolve``."""
        known = self._finished
        if known is None or not _is_still_valid(known, marks):
            found = resolve(marks, n_events, end_ns)
            is_long = len(marks) >= self._least_marks
            self._finished = _finished(marks, found, (n_events, end_ns), len(marks)) if is_long else None
            return found
        found = _with_later(known, marks, n_events, end_ns)
        if len(marks) - known.n_marks > self._least_marks:
            self._finished = _finished(marks, found, (n_events, end_ns), known.n_whole) or known
        return found


def _is_still_valid(known: _Finished, marks: Marks) -> bool:
    new = marks.rows(slice(known.n_marks, None))
    return known.n_marks <= len(marks) <= _LONGER * known.n_whole and _step_rules(new) <= known.step_rules


def _step_rules(marks: Marks) -> frozenset[Any]:
    """Return the kinds of marks, the optimizers, and the threads that run backward.

    They decide by which rule steps are found.
    """
    optimizers = marks.rows(marks.phase == Phase.OPTIMIZER)
    which = set(zip(optimizers.value.tolist(), optimizers.name.tolist(), strict=True))
    kinds = np.unique(marks.kind.astype("i8") * 256 + marks.phase)
    threads = np.unique(marks.thread[marks.phase == Phase.BACKWARD])
    return frozenset(which) | frozenset(kinds.tolist()) | {("thread", at) for at in threads.tolist()}


def _finished(marks: Marks, found: Found, end: tuple[int, int], n_whole: int) -> _Finished | None:
    """Return the part of *found* that is final; None if there is no safe cut."""
    steps, phases = found
    last = len(steps) - _KEPT_STEPS
    for cut in range(last, max(last - _ATTEMPTS, 1), -1):
        # While a file is written, marks may be ahead of their events: then their instants are not final yet.
        if steps.end_event[cut - 1] >= end[0]:
            continue
        is_past = (phases.step < cut) & (phases.end_ns <= steps.start_ns[cut])
        n_past = int(is_past.sum())
        known = _Finished(
            n_whole,
            len(marks),
            _step_rules(marks),
            np.flatnonzero(marks_needed_after(marks, steps, phases, cut)),
            _summarized(steps, cut),
            phases.rows(slice(n_past)),
        )
        if is_past[:n_past].all() and _is_same(found, _with_later(known, marks, *end)):
            return known
    return None


def _summarized(steps: Steps, cut: int) -> SummarizedSteps:
    joined = (steps.start_event[1:] == steps.end_event[:-1]) & (steps.start_ns[1:] == steps.end_ns[:-1])
    columns = {name: getattr(steps, name)[:cut] for name in Steps.DTYPES if name != "index"}
    return SummarizedSteps.of(**columns, is_joined=joined[:cut])


def _with_later(known: _Finished, marks: Marks, n_events: int, end_ns: int) -> Found:
    rows = np.concatenate([known.rows, np.arange(known.n_marks, len(marks))])
    steps, phases = with_summarized(known.steps, *resolve(marks.rows(rows), n_events, end_ns))
    cut = len(known.steps)
    began = steps.start_ns[cut] if len(steps) > cut else end_ns
    phases = phases.rows((phases.step >= cut) | (phases.end_ns > began))
    columns = {
        name: np.concatenate([getattr(known.phases, name), getattr(phases, name)]) for name in Phases.DTYPES
    }
    return steps, Phases(**columns, names=phases.names, made_by=event_threads(marks))


def _is_same(one: Found, other: Found) -> bool:
    return all(
        np.array_equal(column, getattr(there, name))
        for here, there in zip(one, other, strict=True)
        for name, column in here.columns()
    )
