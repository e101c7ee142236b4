"""``resolve`` for a run that is still growing: finished steps are neither searched nor copied again.

Resolving takes some µs and half a kB per mark, so a reader that refreshes every second would soon do nothing
else. Therefore finished steps are found once, provided the remaining marks lead to the same later steps. That
is tested when they are put aside. Whenever there are half as many marks more, or a mark is of a kind not seen
before, it is tested again: with all marks, or in a long run with the latest ones.
"""

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramscope.columns import GrowingColumn
from vramscope.columns.scratch import Scratch
from vramscope.model.marks import MarkKind, Marks, Phase, Phases, Steps
from vramscope.model.past import SummarizedSteps
from vramscope.steps import event_threads, resolve
from vramscope.steps.finished import marks_needed_after
from vramscope.steps.retained import with_summarized

LEAST_MARKS = 2000
"""The number of marks that are resolved within ten milliseconds."""
MOST_AT_ONCE = 100_000
"""Marks that are resolved in 0.4 s with 50 MB. The 900,000 of half an hour at 40 steps a second took 3 s and
400 MB, and the page was 8 s late."""
_N_CUTS = 3
"""In a longer run the marks since the third last of the remembered cuts are resolved again."""
_CUTS_APART = 1 / 5
"""The distance of remembered cuts, as a share of the marks that are resolved at once."""
_KEPT_STEPS = 6
"""The last steps may still become longer: a ``zero_grad`` belongs to the step before it."""
_ATTEMPTS = 4
_LONGER = 1.5
_SHARES = (0.05, 0.45)
"""Shares of the most frequent phase near those at which ``steps`` decides otherwise: which optimizer
closes a cycle, and whether evaluations are part of the loop."""

Found = tuple[Steps, Phases]


class _Cut(NamedTuple):
    """What the steps after a cut need of all before it."""

    rows: NDArray[Any]
    """Rows of the marks, among the first ``n_marks``, that later steps need."""
    n_marks: int
    last: SummarizedSteps
    """The last step before the cut."""
    n_steps: int
    n_phases: int


@dataclass(slots=True, eq=False)
class _Finished:
    """Steps and phases that need not be searched again."""

    n_tested: int
    """The number of marks when it was last tested that these steps are right."""
    step_rules: frozenset[Any]
    cut: _Cut
    steps: dict[str, GrowingColumn]
    phases: dict[str, GrowingColumn]
    cuts: "deque[_Cut]" = field(default_factory=lambda: deque(maxlen=_N_CUTS))
    """Some earlier cuts, the oldest first."""

    def put_aside(self, found: Found, cut: _Cut, n_known: int) -> None:
        """Add what is before *cut* from *found*, whose first *n_known* steps are here already."""
        steps, phases = found
        n_new = cut.n_steps - len(self.steps["index"])
        n_phases = cut.n_phases - len(self.phases["phase"])
        for name, column in self.steps.items():
            column.extend(getattr(steps, name)[n_known : n_known + n_new])
        for name, column in self.phases.items():
            column.extend(getattr(phases, name)[:n_phases])
        self.cut = cut

    def followed_by(self, later: Found, marks: Marks) -> Found:
        """Return all steps and phases: those here and the *later* ones."""
        steps, phases = later
        whole = {name: column.followed_by(getattr(steps, name)[1:]) for name, column in self.steps.items()}
        parts = {name: column.followed_by(getattr(phases, name)) for name, column in self.phases.items()}
        return Steps(**whole), Phases(**parts, names=phases.names, made_by=event_threads(marks))

    def since(self, cut: _Cut, later: Found) -> Found:
        """Return what there is since an earlier *cut*, as :func:`_later` returns it."""
        steps, phases = later
        whole = {
            name: np.concatenate([column.view()[cut.n_steps - 1 :], getattr(steps, name)[1:]])
            for name, column in self.steps.items()
        }
        parts: dict[str, Any] = {
            name: np.concatenate([column.view()[cut.n_phases :], getattr(phases, name)])
            for name, column in self.phases.items()
        }
        return Steps(**whole), replace(phases, **parts)


class IncrementalSteps:
    """Resolves marks to which new ones are only appended.

    Parameters
    ----------
    scratch
        Where finished steps are kept; in memory where None.
    least_marks
        The number of marks from which on finished steps are put aside, and after which that is done again.
    most_at_once
        The number of marks up to which all of them are resolved again to test the finished steps.
    """

    __slots__ = ("_finished", "_least_marks", "_most_at_once", "_scratch")

    def __init__(
        self,
        scratch: Scratch | None = None,
        *,
        least_marks: int = LEAST_MARKS,
        most_at_once: int = MOST_AT_ONCE,
    ) -> None:
        self._scratch = scratch
        self._least_marks = least_marks
        self._most_at_once = most_at_once
        self._finished: _Finished | None = None

    def resolve(self, marks: Marks, n_events: int, end_ns: int) -> Found:
        """Return steps and phases like ``steps.resolve``."""
        known, end = self._finished, (n_events, end_ns)
        if known is None or not self._is_still_valid(known, marks, end):
            return self._all(marks, end)
        later = _later(known.cut, marks, end)
        if len(marks) - known.cut.n_marks > self._least_marks:
            cut = _next_cut(marks, later, end, known.cut)
            if cut is not None:
                known.put_aside(later, cut, 1)
                self._remember(known)
                later = _later(cut, marks, end)
        return known.followed_by(later, marks)

    def _all(self, marks: Marks, end: tuple[int, int]) -> Found:
        self._finished = None
        found = resolve(marks, *end)
        cut = _next_cut(marks, found, end, None) if len(marks) >= self._least_marks else None
        if cut is not None:
            steps, phases = (
                {name: GrowingColumn(dtype, self._scratch) for name, dtype in table.DTYPES.items()}
                for table in (Steps, Phases)
            )
            known = self._finished = _Finished(len(marks), _step_rules(marks), cut, steps, phases)
            known.put_aside(found, cut, 0)
            self._remember(known)
        return found

    def _remember(self, known: _Finished) -> None:
        apart = _CUTS_APART * self._most_at_once
        if not known.cuts or known.cut.n_marks - known.cuts[-1].n_marks >= apart:
            known.cuts.append(known.cut)

    def _is_still_valid(self, known: _Finished, marks: Marks, end: tuple[int, int]) -> bool:
        n_known = known.cut.n_marks
        if len(marks) < n_known or not _step_rules(marks.rows(slice(n_known, None))) <= known.step_rules:
            return False
        if len(marks) > _LONGER * known.n_tested:
            if len(marks) <= self._most_at_once or not _is_found_again(known, marks, end):
                return False
            known.n_tested = len(marks)
        return True


def _step_rules(marks: Marks) -> frozenset[Any]:
    """Return the kinds of marks, the optimizers, and the threads that run backward.

    They decide by which rule steps are found.
    """
    optimizers = marks.rows(marks.phase == Phase.OPTIMIZER)
    which = set(zip(optimizers.value.tolist(), optimizers.name.tolist(), strict=True))
    kinds = np.unique(marks.kind.astype("i8") * 256 + marks.phase)
    threads = np.unique(marks.thread[marks.phase == Phase.BACKWARD])
    return frozenset(which) | frozenset(kinds.tolist()) | {("thread", at) for at in threads.tolist()}


def _is_found_again(known: _Finished, marks: Marks, end: tuple[int, int]) -> bool:
    """Return whether the latest marks lead to the known steps, and are a mixture like that of all marks."""
    cut = known.cuts[0]
    is_alike = _mixture(marks) == _mixture(marks.rows(slice(cut.n_marks, None)))
    return is_alike and _is_same(_later(cut, marks, end), known.since(cut, _later(known.cut, marks, end)))


def _mixture(marks: Marks) -> dict[Any, tuple[bool, ...]]:
    """Return how frequent each phase and each optimizer is, by ``_SHARES``; rare ones are left out."""
    begins = marks.kind == MarkKind.PHASE_BEGIN
    is_optimizer = begins & (marks.phase == Phase.OPTIMIZER)
    optimizers = zip(marks.value[is_optimizer].tolist(), marks.name[is_optimizer].tolist(), strict=True)
    of_phase = np.bincount(marks.phase[begins], minlength=max(Phase) + 1)
    of_phase[[Phase.OPTIMIZER, Phase.USER]] = 0
    counts = Counter[Any](optimizers) + Counter(dict(enumerate(of_phase.tolist())))
    most = max(counts.values(), default=0)
    shares = {of: tuple(n >= share * most for share in _SHARES) for of, n in counts.items()}
    return {of: is_above for of, is_above in shares.items() if any(is_above)}


def _next_cut(marks: Marks, found: Found, end: tuple[int, int], before: _Cut | None) -> _Cut | None:
    """Return the last cut of *found* up to which all is final; None if there is no safe one.

    *found* is that of all marks, or of those since the cut *before*.
    """
    steps, phases = found
    rows = _rows(before, marks)
    n_steps, n_phases = (before.n_steps - 1, before.n_phases) if before is not None else (0, 0)
    last = len(steps) - _KEPT_STEPS
    for at in range(last, max(last - _ATTEMPTS, 1), -1):
        # While a file is written, marks may be ahead of their events: then their instants are not final yet.
        if steps.end_event[at - 1] >= end[0]:
            continue
        is_past = (phases.step < n_steps + at) & (phases.end_ns <= steps.start_ns[at])
        n_past = int(is_past.sum())
        needed = rows[marks_needed_after(marks.rows(rows), steps, phases, at)]
        cut = _Cut(needed, len(marks), _summarized(steps, at - 1), n_steps + at, n_phases + n_past)
        expected = steps.rows(slice(at - 1, None)), phases.rows(slice(n_past, None))
        if is_past[:n_past].all() and _is_same(expected, _later(cut, marks, end)):
            return cut
    return None


def _rows(cut: _Cut | None, marks: Marks) -> NDArray[Any]:
    """Return the rows of the marks that decide what comes after *cut*."""
    if cut is None:
        return np.arange(len(marks))
    return np.concatenate([cut.rows, np.arange(cut.n_marks, len(marks))])


def _summarized(steps: Steps, at: int) -> SummarizedSteps:
    """Return one step, and whether the next one begins where it ends."""
    is_joined = (
        steps.start_event[at + 1] == steps.end_event[at] and steps.start_ns[at + 1] == steps.end_ns[at]
    )
    columns = {name: getattr(steps, name)[at : at + 1] for name in Steps.DTYPES if name != "index"}
    return SummarizedSteps.of(**columns, is_joined=[is_joined])


def _later(cut: _Cut, marks: Marks, end: tuple[int, int]) -> Found:
    """Return the last step before *cut* and all steps after it, and the phases after it."""
    found = resolve(marks.rows(_rows(cut, marks)), *end)
    steps, phases = with_summarized(cut.last, *found)
    began = steps.start_ns[1] if len(steps) > 1 else end[1]
    phases = phases.rows((phases.step >= 1) | (phases.end_ns > began))
    n_before = cut.n_steps - 1
    return (
        replace(steps, index=steps.index + n_before),
        replace(phases, step=np.where(phases.step < 0, phases.step, phases.step + n_before)),
    )


def _is_same(one: Found, other: Found) -> bool:
    return all(
        np.array_equal(column, getattr(there, name))
        for here, there in zip(one, other, strict=True)
        for name, column in here.columns()
    )
