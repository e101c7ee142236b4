"""How marks become steps and phases, at once or in pieces.

Marks are facts (a forward began, an optimizer returned). Steps are an interpretation, so they are derived
when a recording is read and never stored: a better rule then also serves old recordings.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vramscope.columns import GrowingColumn
from vramscope.columns.scratch import Scratch
from vramscope.model.marks import EventThreads, MarkKind, Marks, Phase, Phases, Steps
from vramscope.model.recording import Outcome
from vramscope.model.table import Array
from vramscope.steps.spans import STEPS_IN, Program, Rules, Span, rules_until, spans_of
from vramscope.steps.stretches import (
    REGION,
    End,
    Mark,
    Stretch,
    losses,
    marks_at,
    name_evaluations,
    nest,
    stretches_of,
    working_alone,
)

LEAST_MARKS = 2000
"""The number of marks that are resolved within ten milliseconds."""
_ATTEMPTS = 4

Found = tuple[Steps, Phases]


def resolve(marks: Marks, n_events: int, end_ns: int, outcome: Outcome | None = None) -> Found:
    """Derive the steps and phases of one device.

    Steps come from the best source available, in this order: the program's own step marks
    (``recorder.step()``, ProfilerStep); one ``with record():`` entry per step; the updates of the optimizers,
    where a turn of several that alternate is one; the outermost forwards in which an optimizer steps; the end
    of the last outermost backward before the next forward; an outermost forward with gradients; if there is
    none, one without gradients.

    If several threads train at once, these are the steps of one of them. Phases are the marked ones of every
    thread, and LOSS for the work between a forward and the backward after it.

    Steps and phases that are still open end at the instant *n_events* and the time *end_ns*. How the run
    ended decides whether work after the last step is a step. Phases are ordered by start.
    """
    return StepFinder(least_marks=len(marks) + 1).extend(marks, n_events, end_ns, outcome)


def event_threads(marks: Marks) -> EventThreads:
    """Return which thread made the events, from the marks that say so.

    Where a thread takes a name it gets a run without events: events without a name are not its own from here
    on.
    """
    marks = marks.rows(marks.kind == MarkKind.THREAD)
    marks = marks.rows(np.argsort(marks.event, kind="stable"))
    switches, names = (marks.rows(marks.value == value) for value in (0, 1))
    run = np.searchsorted(switches.event, names.event, side="right")
    goes_on = np.append(-1, switches.thread)[run]
    start = np.concatenate([np.repeat(names.event, 2), switches.event])
    thread = np.concatenate([np.stack([names.thread, goes_on], axis=1).ravel(), switches.thread])
    # At one event the names come first, and what goes on there is replaced by a switch.
    order = np.argsort(start, kind="stable")
    return EventThreads.of(start_event=start[order], thread=thread[order])


@dataclass(frozen=True, slots=True)
class _Latest:
    """What the marks since a cut lead to."""

    program: Program
    shown: list[Stretch]
    """The phases, losses among them, in order."""
    spans: list[Span]
    rules: Rules
    """What all marks lead to."""


class StepFinder:
    """Finds the steps and phases of marks to which new ones are only appended.

    Resolving takes some µs and half a kB per mark, so a reader that refreshes every second would soon do
    nothing else. Therefore a step is final as soon as no later mark can change it but by a rule for all
    steps; where such a rule changes, all marks are resolved again.

    Finished steps are put aside after *least_marks*, and kept in *scratch*, in memory where None.
    """

    __slots__ = ("_cut", "_least_marks", "_open", "_phases", "_rules", "_scratch", "_steps", "_until")

    def __init__(self, scratch: Scratch | None = None, *, least_marks: int = LEAST_MARKS) -> None:
        self._scratch = scratch
        self._least_marks = least_marks
        self._forget()

    def _forget(self) -> None:
        self._rules = Rules()
        self._until = 0
        """The mark that ends the last finished step."""
        self._cut = 0
        """The mark, some steps earlier, from which marks are looked at again."""
        self._open = np.zeros(0, "i8")
        """Rows of the marks that began what is open there."""
        self._steps, self._phases = (
            {name: GrowingColumn(dtype, self._scratch) for name, dtype in table.DTYPES.items()}
            for table in (Steps, Phases)
        )

    def extend(self, marks: Marks, n_events: int, end_ns: int, outcome: Outcome | None = None) -> Found:
        """Return the steps and phases of all *marks*, which begin with those of the last call.

        The parameters are those of :func:`resolve`.
        """
        end = End(len(marks), n_events, end_ns)
        if end.n_rows < self._cut:
            self._forget()
        latest = self._look(marks, end, outcome)
        if self._until and self._are_other(latest.rules):
            self._forget()
            latest = self._look(marks, end, outcome)
        is_growing = outcome is None or outcome is Outcome.RUNNING
        if is_growing and end.n_rows - self._cut >= self._least_marks:
            self._put_aside(latest, marks, end)
        later = self._rows(latest, marks, end, (self._until, end.n_rows))
        made_by = event_threads(marks)
        if not self._until:
            return Steps(**later[0]), Phases(**later[1], names=marks.names, made_by=made_by)
        steps, phases = (
            {name: column.followed_by(rows[name]) for name, column in columns.items()}
            for columns, rows in zip((self._steps, self._phases), later, strict=True)
        )
        return Steps(**steps), Phases(**phases, names=marks.names, made_by=made_by)

    def _look(self, marks: Marks, end: End, outcome: Outcome | None) -> _Latest:
        """Return what the marks since the cut lead to."""
        before = self._rules
        rows = marks_at(marks, np.concatenate([self._open, np.arange(self._cut, end.n_rows)]))
        stretches = stretches_of(rows, end)
        alone = before.alone | working_alone(stretches)
        helpers = frozenset({stretch.mark.thread for stretch in stretches} - {REGION} - alone)
        nest(stretches, helpers)
        if len(left := without_loops(stretches)) < len(stretches):
            nest(stretches := left, helpers)
        trainers = before.trainers | {s.owner for s in stretches if s.phase == Phase.BACKWARD}
        is_over = outcome is Outcome.FINISHED and bool(trainers)
        name_evaluations(stretches, is_over=is_over)
        program = Program(rows, stretches, before, end.n_rows, outcome)
        spans, rules = spans_of(program)
        rules = replace(rules, alone=alone, helpers=before.helpers | helpers, trainers=trainers)
        shown = sorted([*stretches, *losses(stretches)], key=lambda stretch: stretch.first)
        return _Latest(program, shown, spans, rules)

    def _are_other(self, rules: Rules) -> bool:
        """Whether the finished steps, too, are found otherwise by these *rules*."""
        before = self._rules
        is_other = (rules.source, rules.inferred) != (before.source, before.inferred)
        is_other |= rules.reach != before.reach
        return is_other or bool(rules.alone & before.helpers) or len(rules.trainers) > 1

    def _put_aside(self, latest: _Latest, marks: Marks, end: End) -> None:
        """Keep the steps and phases that are final, and look at fewer marks from now on."""
        reach, spans = latest.rules.reach, latest.spans
        if len(latest.rules.trainers) > 1:
            return
        last = len(spans) - 1 - reach
        for at in range(last, max(last - _ATTEMPTS, reach), -1):
            until = spans[at].last
            if until > self._until and self._is_final(latest, marks, end, until):
                finished = self._rows(latest, marks, end, (self._until, until))
                for columns, rows in zip((self._steps, self._phases), finished, strict=True):
                    for name, column in columns.items():
                        column.extend(rows[name])
                self._until = until
                self._look_from(spans[at - reach].first, latest)
                return

    def _is_final(self, latest: _Latest, marks: Marks, end: End, until: int) -> bool:
        """Whether all has ended that began before; while a file is written, marks may be ahead of events."""
        begun = [stretch for stretch in latest.shown if stretch.first < until]
        return marks.event[until] < end.n_events and all(
            stretch.last < end.n_rows and stretch.end_event < end.n_events for stretch in begun
        )

    def _look_from(self, cut: int, latest: _Latest) -> None:
        rows = latest.program.rows
        is_open = [s.first for s in latest.program.stretches if s.first < cut < s.last]
        self._rules = rules_until(latest.program, latest.rules, cut)
        self._open = np.array(sorted([*is_open, *_entered(rows, cut)]), "i8")
        self._cut = cut

    def _rows(
        self, latest: _Latest, marks: Marks, end: End, between: tuple[int, int]
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the columns of the steps and phases that begin in the marks *between*."""
        first, after = between
        spans = [span for span in latest.spans if first <= span.first < after]
        shown = [stretch for stretch in latest.shown if first <= stretch.first < after]
        n_steps = len(self._steps["index"])
        steps = _steps(marks, end, spans, n_steps)
        return steps, _phases(shown, _step_of(shown, spans, n_steps))


def _entered(rows: list[Mark], cut: int) -> list[int]:
    """Return the marks at which blocks began that are still open at *cut*."""
    found: dict[bool, list[int]] = {True: [], False: []}
    for row in rows:
        if row.at < cut and row.value <= 1:
            if row.kind == MarkKind.ENTER:
                found[row.value == 0].append(row.at)
            elif row.kind == MarkKind.EXIT and found[row.value == 0]:
                found[row.value == 0].pop()
    return [*found[True], *found[False]]


def _steps(marks: Marks, end: End, spans: Sequence[Span], n_before: int) -> dict[str, Array]:
    event, time_ns = np.append(marks.event, end.n_events), np.append(marks.time_ns, end.time_ns)
    first, last = (np.array([getattr(span, name) for span in spans], "i8") for name in Span._fields)
    return {
        "index": np.arange(n_before, n_before + len(spans)),
        "start_event": event[first],
        "end_event": event[last],
        "start_ns": time_ns[first],
        "end_ns": time_ns[last],
    }


def _phases(shown: Sequence[Stretch], step: list[int]) -> dict[str, Array]:
    columns: dict[str, list[int]] = {
        "phase": [s.phase for s in shown],
        "step": step,
        "depth": [s.depth for s in shown],
        "start_event": [s.mark.event for s in shown],
        "end_event": [s.end_event for s in shown],
        "start_ns": [s.mark.time_ns for s in shown],
        "end_ns": [s.end_ns for s in shown],
        "thread": [s.owner for s in shown],
        "name": [s.mark.name for s in shown],
    }
    return {name: np.array(rows, Phases.DTYPES[name]) for name, rows in columns.items()}


def _step_of(shown: Sequence[Stretch], spans: Sequence[Span], n_before: int) -> list[int]:
    """Return the row of the step in which each phase began, −1 for none; both are ordered by first mark."""
    found = []
    at = 0
    for stretch in shown:
        while at < len(spans) and spans[at].last <= stretch.first:
            at += 1
        inside = at < len(spans) and spans[at].first <= stretch.first
        found.append(n_before + at if inside else -1)
    return found


_LEAST_UPDATES = 7
"""Updates of one optimizer in a forward that make it a loop; two are enough where it loads batches. The inner
loop of a meta-learner has fewer."""


def without_loops(stretches: list[Stretch]) -> list[Stretch]:
    """Return the phases without the forwards that are loops; the others have to be nested again."""
    inside = [(s, s.outer) for s in stretches if s.outer is not None and s.within == 1]
    loading = {outer.first for s, outer in inside if s.phase == Phase.DATA}
    updates: Counter[Any] = Counter(
        (outer.first, s.mark.value, s.mark.name)
        for s, outer in inside
        if s.phase == Phase.OPTIMIZER and outer.phase in STEPS_IN
    )
    loops = {of[0] for of, n in updates.items() if n >= (2 if of[0] in loading else _LEAST_UPDATES)}
    return [stretch for stretch in stretches if stretch.first not in loops]
