"""Finds from where to where each step lasts, as rows of the marks.

Steps come from the best of ``StepsFrom`` that there is. All else is decided by marks that are
near, and by few facts on all marks, the ``Rules``: so the finished steps of a long run stay as they are.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import chain, pairwise, takewhile
from typing import Any, NamedTuple

from vramscope.model.marks import BackwardKeeps, MarkKind, Phase
from vramscope.model.recording import Outcome
from vramscope.steps.stretches import REGION, Mark, Stretch, outermost
from vramscope.steps.turns import REACH, begins_of_turns, ends_of_steps

_WORK = frozenset({Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER})
_OPENS_A_STEP = _WORK | {Phase.ZERO_GRAD, Phase.DATA}
_COMPUTES = frozenset({Phase.FORWARD, Phase.BACKWARD, Phase.LOSS, Phase.EVAL})
STEPS_IN = frozenset({Phase.FORWARD, Phase.LOSS, Phase.EVAL})
_NEAR = 6
"""Steps of which nothing depends on steps that are farther away: a ``zero_grad`` belongs to the step before
it, an evaluation to a step if its neighbors have one, too."""


class StepsFrom(IntEnum):
    """What steps are taken from, the best first."""

    REPORTED = 0
    """The program's own step marks (``recorder.step()``, ProfilerStep)."""
    NESTED = 1
    """One ``with record():`` block within another one per step."""
    ENTRIES = 2
    """One outermost ``with record():`` block per step."""
    OPTIMIZERS = 3
    """Updates of the optimizers."""
    OPTIMIZER_IN_FORWARD = 4
    """Outermost forwards in which an optimizer steps, as of a meta-learner."""
    BACKWARDS = 5
    """The last outermost backward before the next forward."""
    FORWARDS = 6
    """Outermost forwards with gradients."""
    EVALUATIONS = 7
    """Outermost forwards without gradients: an inference."""


class Span(NamedTuple):
    """A step from one mark to another, as rows of the marks."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Rules:
    """What the marks until a cut say about the steps after it."""

    source: StepsFrom = StepsFrom.EVALUATIONS
    inferred: StepsFrom = StepsFrom.EVALUATIONS
    """The best source of steps among those that the program does not name itself."""
    clears_first: bool | None = None
    """Whether the loop clears its gradients before the forward; None while there is no step."""
    order: Mapping[Any, int] = field(default_factory=dict)
    """The place of each optimizer in the order of their first updates."""
    n_nested: int = 0
    n_entries: int = 0
    """Number of finished blocks that are nested, and of outermost ones."""
    are_steps: bool = True
    """Whether each of the outermost ones contains the end of one inferred step at most."""
    alone: frozenset[int] = frozenset()
    """Threads that work for no other."""
    helpers: frozenset[int] = frozenset()
    """Threads of which that is not so."""
    trainers: frozenset[int] = frozenset()
    """Threads that run backward."""

    @property
    def reach(self) -> int:
        """Number of steps within which everything is decided that is not decided by these rules."""
        return REACH if len(self.order) > 1 else _NEAR


@dataclass(frozen=True, slots=True)
class Program:
    """What the marks since a cut say: the marks, their phases, the rules until the cut, and their end."""

    rows: list[Mark]
    stretches: list[Stretch]
    rules: Rules
    n_rows: int
    outcome: Outcome | None
    """How the run ended; None where that is not known."""

    def event(self, row: int) -> int:
        """Return the instant of a row of the marks."""
        return self.rows[bisect_left(self.rows, row, key=lambda mark: mark.at)].event


def spans_of(program: Program) -> tuple[list[Span], Rules]:
    """Return the steps, and the rules that follow from all marks."""
    threads = _stepping(program.rows, program.stretches)
    if threads is not None:
        mine = [s for s in program.stretches if s.owner in (*threads, REGION)]
        rows = [
            row
            for row in program.rows
            if row.thread in threads or (row.kind != MarkKind.STEP and not row.value)
        ]
        program = replace(program, rows=rows, stretches=mine)
    rules = program.rules
    reported = [row.at for row in program.rows if row.kind == MarkKind.STEP]
    if reported or rules.source == StepsFrom.REPORTED:
        return _between(reported, program), replace(rules, source=StepsFrom.REPORTED)
    inferred, rules = _inferred(program)
    nested = [s for s in _entries(program, outermost=False) if s.first < s.last]
    # A single entry around a whole loop is no step: a program that records itself, under ``vramscope run``.
    n_nested = rules.n_nested + len(nested)
    if n_nested > 1 or (nested and _one_at_most(nested, inferred)):
        return nested, replace(rules, source=StepsFrom.NESTED)
    entries = list(_entries(program, outermost=True))
    if rules.n_entries + len(entries) > 1 and rules.are_steps and _one_at_most(entries, inferred):
        return entries, replace(rules, source=StepsFrom.ENTRIES)
    return inferred, replace(rules, source=rules.inferred)


def rules_until(program: Program, rules: Rules, cut: int) -> Rules:
    """Return the *rules* that all marks lead to, with the blocks until *cut* only."""
    if rules.source == StepsFrom.REPORTED:
        return rules
    inferred, _ = _inferred(program)
    nested, entries = (list(_entries(program, outermost=is_outer)) for is_outer in (False, True))
    begun = [Span(s.first, min(s.last, cut)) for s in entries if s.first < cut]
    return replace(
        rules,
        n_nested=program.rules.n_nested + sum(s.last <= cut for s in nested),
        n_entries=program.rules.n_entries + sum(s.last <= cut for s in entries),
        are_steps=program.rules.are_steps and _one_at_most(begun, inferred),
    )


def _stepping(rows: list[Mark], stretches: list[Stretch]) -> frozenset[int] | None:
    """Return the threads whose steps are shown, where several train at once; None where all are one loop.

    Steps do not overlap, so they are those of one thread: the first that reports steps, else of that whose
    optimizer steps least often, else the first that runs backward.
    """
    backwards = [s for s in stretches if s.phase == Phase.BACKWARD and s.mark.thread != REGION]
    training = {stretch.owner for stretch in backwards}
    if len(training) < 2 or not _overlap(stretches, training):
        return None
    reported = [row.thread for row in rows if row.kind == MarkKind.STEP and row.thread in training]
    if reported:
        return frozenset(reported[:1])
    optimizers = [s for s in outermost(stretches) if s.phase == Phase.OPTIMIZER and s.owner in training]
    counts = Counter(map(_identity, optimizers))
    rarest = min(reversed(counts), key=counts.__getitem__, default=None)
    of_rarest = frozenset(stretch.owner for stretch in optimizers if _identity(stretch) == rarest)
    return of_rarest or frozenset([backwards[0].owner])


def _overlap(stretches: list[Stretch], threads: set[int]) -> bool:
    """Whether a phase of one of the threads begins while one of another is open."""
    around: list[Stretch] = []
    for stretch in stretches:
        if stretch.owner in threads:
            around = [open_one for open_one in around if open_one.last > stretch.first]
            if any(open_one.owner != stretch.owner for open_one in around):
                return True
            around.append(stretch)
    return False


def _entries(program: Program, *, outermost: bool) -> Iterator[Span]:
    """Yield ``with record():`` blocks from ENTER to EXIT (or to the end, while open)."""
    open_at: list[int] = []
    for row in program.rows:
        if row.kind not in (MarkKind.ENTER, MarkKind.EXIT) or (row.value == 0) != outermost or row.value > 1:
            continue
        if row.kind == MarkKind.ENTER:
            open_at.append(row.at)
        elif open_at:
            yield Span(open_at.pop(), row.at)
    if open_at:
        yield Span(open_at.pop(), program.n_rows)


def _one_at_most(entries: list[Span], spans: list[Span]) -> bool:
    """Whether no entry contains the ends of two steps."""
    ends = sorted(span.last for span in spans)
    return all(bisect_left(ends, entry.last) - bisect_left(ends, entry.first) <= 1 for entry in entries)


def _inferred(program: Program) -> tuple[list[Span], Rules]:
    """Return the steps that the program does not name itself, from the first source that has any."""
    outer = outermost(program.stretches)
    updates = _updates(program.stretches)
    if updates or program.rules.inferred == StepsFrom.OPTIMIZERS:
        rules = _with_optimizers(replace(program.rules, inferred=StepsFrom.OPTIMIZERS), updates, outer)
        is_end = ends_of_steps([_identity(stretch) for stretch in updates], rules.order)
        closing = [stretch.last for stretch, ends in zip(updates, is_end, strict=True) if ends]
        return _between(_with_zero_grad(closing, outer, rules), program), rules
    for source, find in _ENDS.items():
        ends = find(program.stretches)
        if ends or program.rules.inferred == source:
            return _between(ends, program), replace(program.rules, inferred=source)
    forwards = [s for s in outer if s.phase == Phase.FORWARD]
    has_died = program.outcome in (Outcome.FAILED, Outcome.DIED)
    # A program that runs forwards with gradients trains, so its evaluations are no steps. Otherwise they are.
    if forwards or program.rules.inferred == StepsFrom.FORWARDS:
        spans, rules = _frames(forwards, replace(program.rules, inferred=StepsFrom.FORWARDS))
        if spans and has_died:  # its loss or its backward failed
            spans[-1] = spans[-1]._replace(last=program.n_rows)
        return spans, rules
    return _frames([s for s in outer if s.phase == Phase.EVAL and not has_died], program.rules)


def _frames(calls: list[Stretch], rules: Rules) -> tuple[list[Span], Rules]:
    """Return the steps of a program that only calls modules: a call each, or a turn of several modules."""
    modules = [_identity(stretch) for stretch in calls]
    rules = replace(rules, order={of: at for at, of in enumerate(dict.fromkeys([*rules.order, *modules]))})
    begins = begins_of_turns(modules, rules.order)
    firsts = [at for at, is_begin in enumerate(begins) if is_begin]
    return [Span(calls[a].first, calls[b - 1].last) for a, b in pairwise([*firsts, len(calls)])], rules


def _updates(stretches: list[Stretch]) -> list[Stretch]:
    """Return the updates by optimizers; several after one backward are one: the last of them."""
    found: list[Stretch] = []
    together: set[Any] = set()
    computing = {s.outer.first for s in stretches if s.phase in _COMPUTES and s.outer is not None}
    for stretch in outermost(stretches):
        if stretch.phase in _COMPUTES or stretch.first in computing:
            together = set()
        if stretch.phase == Phase.OPTIMIZER:
            if together and _identity(stretch) not in together:
                found.pop()
            elif together:
                together = set()
            together.add(_identity(stretch))
            found.append(stretch)
    return found


def _with_optimizers(rules: Rules, updates: list[Stretch], outer: list[Stretch]) -> Rules:
    order = dict(rules.order)
    for stretch in updates:
        order.setdefault(_identity(stretch), len(order))
    clears_first = rules.clears_first
    if clears_first is None:
        clears_first = next(s.phase for s in outer if s.phase in _OPENS_A_STEP) == Phase.ZERO_GRAD
    return replace(rules, order=order, clears_first=clears_first)


def _identity(stretch: Stretch) -> tuple[int, int]:
    # A module in evaluation mode has its identity with a minus.
    return abs(stretch.mark.value), stretch.mark.name


def _ends_of_stepping(stretches: list[Stretch]) -> list[int]:
    """Return where outermost forwards end in which an optimizer steps."""
    inside = [s.outer for s in stretches if s.phase == Phase.OPTIMIZER and s.outer is not None]
    return list(dict.fromkeys(s.last for s in inside if s.phase in STEPS_IN))


def _ends_of_backward(stretches: list[Stretch]) -> list[int]:
    """Return where iterations of a loop without an optimizer end: after the last backward of a forward.

    A second backward without a forward of its own, as for a gradient penalty, belongs to the same iteration.
    Work before the next batch is loaded, such as a manual update, belongs to this iteration.
    """
    found: list[int] = []
    is_open = False
    for stretch in outermost(stretches):
        if stretch.phase == Phase.BACKWARD:
            if is_open:
                found.pop()
            found.append(stretch.last)
            is_open = True
        elif is_open and stretch.phase == Phase.DATA:
            found[-1] = stretch.first
        is_open = is_open and stretch.phase not in (Phase.FORWARD, Phase.DATA)
    return found


_ENDS = {StepsFrom.OPTIMIZER_IN_FORWARD: _ends_of_stepping, StepsFrom.BACKWARDS: _ends_of_backward}


def _with_zero_grad(ends: list[int], outer: list[Stretch], rules: Rules) -> list[int]:
    """Extend each step over the zero_grad after it, as in ``optimizer.step(); optimizer.zero_grad()``.

    If the first step begins with a zero_grad, the loop clears gradients before the forward, and what follows
    a step belongs to the next.
    """
    if rules.clears_first:
        return ends
    found = []
    position = 0
    for end in ends:
        while position < len(outer) and outer[position].first < end:
            position += 1
        found.append(end)
        while position < len(outer) and outer[position].phase == Phase.ZERO_GRAD:
            found[-1] = outer[position].last
            position += 1
    return found


def _between(ends: list[int], program: Program) -> list[Span]:
    """Return spans that end at the given marks, and the unfinished one after the last.

    The first begins with the first phase that belongs to a loop: building the model is not a step. An end
    at *n_rows* is a phase that is still open.
    """
    begins = sorted(s.first for s in program.stretches if s.phase in _OPENS_A_STEP)
    first = begins[0] if begins and (not ends or begins[0] < ends[0]) else 0
    spans = [Span(a, b) for a, b in pairwise([first, *ends])]
    last = ends[-1] if ends else -1
    spans.append(Span(max(last, first), program.n_rows))
    _name_tests(_phases_in(spans, program))
    if not any(_trains(s, program) for s in program.stretches if s.first > last):
        spans.pop()
    return _without_evaluation(spans, program)


def _phases_in(spans: list[Span], program: Program) -> list[list[Stretch]]:
    """Return the outermost phases of each step."""
    outer = outermost(program.stretches)
    firsts = [s.first for s in outer]
    return [outer[bisect_left(firsts, a) : bisect_left(firsts, b)] for a, b in spans]


def _name_tests(phases: list[list[Stretch]]) -> None:
    """Give forwards in evaluation mode with which steps begin, and their losses, the phase EVAL.

    Where neighboring steps run the module in evaluation mode too, or a backward follows, they are part of the
    loop: a frozen network, an attack. What the neighbors train is tested; another module is where it runs
    several times, as a copy that averages weights does.
    """
    modules = [Counter(s.mark.value for s in of_step if s.phase == Phase.FORWARD) for of_step in phases]
    for at, of_step in enumerate(phases):
        near = Counter(chain(*modules[max(at - 1, 0) : at], *modules[at + 1 : at + 2]))
        tested = {of for of, n in modules[at].items() if of < 0 and not near[of] and (near[-of] or n > 1)}
        for stretch in _tests_of(of_step, tested) if near and tested else ():
            stretch.phase = Phase.EVAL


def _tests_of(phases: list[Stretch], tested: set[int]) -> list[Stretch]:
    """Return the forwards of *tested* modules with which a step begins, and their losses."""
    head = list(takewhile(lambda s: s.phase not in _WORK or s.mark.value in tested, phases))
    is_alone = len(head) == len(phases) or phases[len(head)].phase == Phase.FORWARD
    return [s for s in head if is_alone and s.phase in (Phase.FORWARD, Phase.LOSS)]


def _trains(stretch: Stretch, program: Program) -> bool:
    """Whether a phase after the last step is the work of an unfinished one.

    Where the program came to its end, forwards with gradients were a test, and gradients that only were
    asked for (``autograd.grad``) as well.
    """
    if program.outcome is not Outcome.FINISHED or stretch.last == program.n_rows:
        return stretch.phase in _WORK
    is_backward = stretch.phase == Phase.BACKWARD and not stretch.mark.value & BackwardKeeps.RETURNS
    return is_backward or stretch.phase == Phase.OPTIMIZER


def _without_evaluation(spans: list[Span], program: Program) -> list[Span]:
    """Begin a step that follows an evaluation after the evaluation.

    An evaluation that precedes the work of neighboring steps too is part of the loop: a teacher model, an
    agent's rollout.
    """
    phases = _phases_in(spans, program)
    last = [_last_evaluation(of_step) for of_step in phases]
    evaluates = [False, *(at is not None for at in last), False]
    found = list(spans)
    for at, evaluation in enumerate(last):
        if evaluation is not None and not (evaluates[at] or evaluates[at + 2]):
            head = phases[at - 1][:1] if at else []
            n_usual = max((s.mark.event - program.event(spans[at - 1].first) for s in head), default=-1)
            found[at] = Span(_after_evaluation(phases[at], evaluation, n_usual), spans[at].last)
    return found


def _last_evaluation(phases: list[Stretch]) -> int | None:
    """Return the place of the last evaluation before the work of a step; None where there is none."""
    before = takewhile(lambda s: s.phase not in _WORK, phases)
    return max((at for at, s in enumerate(before) if s.phase == Phase.EVAL), default=None)


def _after_evaluation(phases: list[Stretch], last: int, n_usual: int) -> int:
    """Return where a step begins whose phases begin with an evaluation, which ends with the *last* of them.

    It begins with its first phase, as what is between may be the evaluation's own code: metrics, results that
    are joined. Only where no more happens there than is usual, as many events as before the first phase of
    the step before, it begins where the evaluation ends. An evaluation that loads batches asks its loader
    once more at its end.
    """
    loaders = [s.mark.value for s in phases[:last] if s.phase == Phase.DATA]
    after = phases[last + 1 :]
    if after and loaders and after[0].phase == Phase.DATA and after[0].mark.value == loaders[-1]:
        after = after[1:]
    if not after or after[0].mark.event - phases[last].end_event <= n_usual:
        return phases[last].last
    return after[0].first
