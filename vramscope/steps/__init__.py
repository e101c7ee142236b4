"""Rules that derive steps and phases from the raw marks.

Marks are facts (a forward began, an optimizer returned). Steps are an interpretation, so they are derived
when a recording is read and never stored: a better rule then also serves old recordings.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from typing import NamedTuple

import numpy as np

from vramscope.model.marks import EventThreads, MarkKind, Marks, Phase, Phases, Steps

# An optimizer that steps less often than this share of the most frequent one does not define the cycle: a
# GAN's generator steps once per 1 to 10 steps of its critic, a side optimizer once per epoch.
_RAREST_IN_CYCLE = 1 / 20

_WORK = frozenset({Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER})
_OPENS_A_STEP = _WORK | {Phase.ZERO_GRAD, Phase.DATA}
_LEADS_TO_BACKWARD = frozenset({Phase.FORWARD, Phase.LOSS, Phase.BACKWARD})
_REGION = 0
"""The thread of a ``record_function`` region, which torch records without one."""


class _Mark(NamedTuple):
    kind: int
    phase: int
    time_ns: int
    event: int
    thread: int
    value: int
    name: int


@dataclass(slots=True)
class _Stretch:
    """A phase between two marks; *last* is the number of marks while the phase is open."""

    mark: _Mark
    first: int
    last: int
    end_event: int
    end_ns: int
    owner: int
    """The thread that the phase belongs to: of a phase on a thread of autograd the one that waits for it."""
    depth: int = 0
    within: int = 0
    """The number of enclosing phases that are not merely named by the user (``record_function``)."""

    @property
    def phase(self) -> int:
        return self.mark.phase


@dataclass(slots=True)
class _Span:
    """A step from one mark to another, as positions in the list of marks."""

    first: int
    last: int


def resolve(marks: Marks, n_events: int, end_ns: int) -> tuple[Steps, Phases]:
    """Derive the steps and phases of one device.

    Steps come from the best source available, in this order: the program's own step marks
    (``recorder.step()``, ProfilerStep); one ``with record():`` entry per step; the end of the optimizer that
    closes the cycle; the end of the last outermost backward before the next forward; an outermost forward
    with gradients; if there is none, one without gradients.

    If several threads train at once, these are the steps of one of them: of that whose optimizer closes the
    cycle. Phases are the marked ones of every thread, and LOSS for the work between a forward and the
    backward after it.

    Parameters
    ----------
    marks
        The marks of the device, in order.
    n_events
        Instant at which phases and steps that are still open end.
    end_ns
        Time at which they end, in nanoseconds.

    Returns
    -------
    tuple[Steps, Phases]
        The steps in order, and the phases ordered by start.
    """
    made_by = event_threads(marks)
    marks = marks.rows(~np.isin(marks.kind, (MarkKind.MODULE, MarkKind.THREAD)))
    rows = [_Mark(*row) for row in zip(*(column.tolist() for _, column in marks.columns()), strict=True)]
    stretches = _stretches(rows, n_events, end_ns)
    spans = _spans(rows, stretches)
    shown = sorted([*stretches, *_losses(stretches)], key=lambda stretch: stretch.first)
    phases = replace(_phases(shown, spans, marks.names), made_by=made_by)
    return _steps(rows, spans, n_events, end_ns), phases


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


def _stretches(rows: list[_Mark], n_events: int, end_ns: int) -> list[_Stretch]:
    """Pair begins with ends per thread; an end also closes inner phases that an exception left open."""
    found: list[_Stretch] = []
    threads: dict[int, list[_Stretch]] = {}
    for at, row in enumerate(rows):
        if row.kind == MarkKind.PHASE_BEGIN:
            stretch = _Stretch(row, at, len(rows), n_events, end_ns, row.thread)
            found.append(stretch)
            threads.setdefault(row.thread, []).append(stretch)
        elif row.kind == MarkKind.PHASE_END:
            _close(threads.get(row.thread, []), row, at)
        elif row.kind == MarkKind.EXIT and row.value == 0:
            for stack in threads.values():
                _end(stack, row, at)
    _nest(found)
    return found


def _nest(stretches: list[_Stretch]) -> None:
    """Set the owner and the depth of each phase.

    A phase is inside of the open phases of its own thread. A recompute on a thread of autograd is inside the
    backward that the calling thread waits in.
    """
    helpers = _helpers(stretches)
    around: list[_Stretch] = []
    for stretch in stretches:
        around = [each for each in around if each.last > stretch.first]
        outer = around
        if stretch.mark.thread in helpers:
            stretch.owner = _waiting(stretch, around, helpers)
        elif stretch.mark.thread != _REGION:
            outer = [each for each in around if each.owner in (stretch.owner, _REGION)]
        stretch.depth = len(outer)
        stretch.within = sum(each.phase != Phase.USER for each in outer)
        around.append(stretch)


def _helpers(stretches: list[_Stretch]) -> frozenset[int]:
    """The threads that work for others: each phase begins while one of another thread is open.

    They are those of autograd and the replicas of DataParallel. A thread with a backward of its own is none.
    """
    threads = {stretch.mark.thread for stretch in stretches} - {_REGION}
    if len(threads) < 2:
        return frozenset()
    threads -= {stretch.mark.thread for stretch in stretches if stretch.phase == Phase.BACKWARD}
    around: list[_Stretch] = []
    for stretch in stretches:
        around = [each for each in around if each.last > stretch.first]
        if all(each.mark.thread == _REGION for each in around):
            threads.discard(stretch.mark.thread)
        around.append(stretch)
    return frozenset(threads)


def _waiting(stretch: _Stretch, around: list[_Stretch], helpers: frozenset[int]) -> int:
    """The thread that a helper works for; the helper itself where that may be several.

    Autograd's thread works for a thread in a backward.
    """
    own = [each.owner for each in around if each.mark.thread == stretch.mark.thread]
    if own:
        return own[-1]
    others = [each for each in around if each.mark.thread not in (*helpers, _REGION)]
    backwards = {each.owner for each in others if each.phase == Phase.BACKWARD}
    owners = backwards or {each.owner for each in others}
    return owners.pop() if len(owners) == 1 else stretch.mark.thread


def _close(stack: list[_Stretch], row: _Mark, at: int) -> None:
    for position in reversed(range(len(stack))):
        if (stack[position].mark.phase, stack[position].mark.name) == (row.phase, row.name):
            closed = stack[position:]
            del stack[position:]
            _end(closed, row, at)
            return


def _end(stack: list[_Stretch], row: _Mark, at: int) -> None:
    for stretch in stack:
        stretch.last, stretch.end_event, stretch.end_ns = at, row.event, row.time_ns
    stack.clear()


def _spans(rows: list[_Mark], stretches: list[_Stretch]) -> list[_Span]:
    threads = _stepping(rows, stretches)
    mine = [s for s in stretches if threads is None or s.owner in (*threads, _REGION)]
    is_mine = [threads is None or row.thread in threads or not row.value for row in rows]
    reported = [
        at
        for at, row in enumerate(rows)
        if row.kind == MarkKind.STEP and (threads is None or row.thread in threads)
    ]
    nested = [span for span in _entries(rows, is_mine, outermost=False) if span.first < span.last]
    if reported:
        return _between(reported, mine, len(rows))
    inferred = _inferred(mine, len(rows))
    # A single entry around a whole loop is no step: a program that records itself, under ``vramscope run``.
    if nested and (len(nested) > 1 or _one_at_most(nested, inferred)):
        return nested
    entries = list(_entries(rows, is_mine, outermost=True))
    if len(entries) > 1 and _one_at_most(entries, inferred):
        return entries
    return inferred


def _stepping(rows: list[_Mark], stretches: list[_Stretch]) -> frozenset[int] | None:
    """The threads whose steps are shown, where several train at once; None where all phases are one loop.

    Steps do not overlap, so they are those of one thread: the first that reports steps, else of that whose
    optimizer closes the cycle, else the first that runs backward.
    """
    backwards = [s for s in stretches if s.phase == Phase.BACKWARD and s.mark.thread != _REGION]
    training = {stretch.owner for stretch in backwards}
    if len(training) < 2 or not _overlap(stretches, training):
        return None
    reported = [row.thread for row in rows if row.kind == MarkKind.STEP and row.thread in training]
    if reported:
        return frozenset(reported[:1])
    optimizers = [s for s in _outermost(stretches) if s.phase == Phase.OPTIMIZER and s.owner in training]
    anchor = _anchor(optimizers) if optimizers else None
    of_anchor = frozenset(stretch.owner for stretch in optimizers if _identity(stretch) == anchor)
    return of_anchor or frozenset([backwards[0].owner])


def _overlap(stretches: list[_Stretch], threads: set[int]) -> bool:
    """Whether a phase of one of the threads begins while one of another is open."""
    around: list[_Stretch] = []
    for stretch in stretches:
        if stretch.owner in threads:
            around = [each for each in around if each.last > stretch.first]
            if any(each.owner != stretch.owner for each in around):
                return True
            around.append(stretch)
    return False


def _entries(rows: list[_Mark], is_mine: list[bool], *, outermost: bool) -> Iterator[_Span]:
    """Yield ``with record():`` blocks from ENTER to EXIT (or to the end, while open)."""
    open_at: list[int] = []
    for at, row in enumerate(rows):
        if (
            row.kind not in (MarkKind.ENTER, MarkKind.EXIT)
            or (row.value == 0) != outermost
            or not is_mine[at]
        ):
            continue
        if row.kind == MarkKind.ENTER and row.value <= 1:
            open_at.append(at)
        elif row.kind == MarkKind.EXIT and row.value <= 1 and open_at:
            yield _Span(open_at.pop(), at)
    if open_at:
        yield _Span(open_at.pop(), len(rows))


def _one_at_most(entries: list[_Span], spans: list[_Span]) -> bool:
    """Whether no entry contains the ends of two steps."""
    ends = sorted(span.last for span in spans)
    return all(bisect_left(ends, entry.last) - bisect_left(ends, entry.first) <= 1 for entry in entries)


def _outermost(stretches: list[_Stretch]) -> list[_Stretch]:
    return [s for s in stretches if s.within == 0 and s.phase != Phase.USER]


def _inferred(stretches: list[_Stretch], n_rows: int) -> list[_Span]:
    outermost = _outermost(stretches)
    optimizers = [s for s in outermost if s.phase == Phase.OPTIMIZER]
    if optimizers:
        anchor = _anchor(optimizers)
        ends = [s.last for s in optimizers if _identity(s) == anchor]
        return _between(_with_zero_grad(ends, outermost), stretches, n_rows)
    ends = _ends_of_backward(outermost)
    if ends:
        return _between(ends, stretches, n_rows)
    forwards = [s for s in outermost if s.phase == Phase.FORWARD]
    # A program that runs forwards with gradients trains, so its evaluations are no steps. Otherwise they are.
    evaluations = [s for s in outermost if s.phase == Phase.EVAL]
    return [_Span(s.first, s.last) for s in forwards or evaluations]


def _losses(stretches: list[_Stretch]) -> Iterator[_Stretch]:
    """Yield a LOSS phase for the gap between a forward and the backward that follows it.

    The loss function is then no module. Gaps within an optimizer's closure, and between two backwards that
    one forward led to, count as well.
    """
    for siblings in _siblings(stretches):
        leads_to_backward = False
        for before, after in reversed(list(pairwise(siblings))):
            if after.phase != Phase.ZERO_GRAD:
                leads_to_backward = after.phase in (Phase.LOSS, Phase.BACKWARD)
            if leads_to_backward and before.phase in _LEADS_TO_BACKWARD and _is_gap(before, after):
                begin = before.mark._replace(
                    phase=int(Phase.LOSS), time_ns=before.end_ns, event=before.end_event, name=0
                )
                first, last, end = before.last, after.first, (after.mark.event, after.mark.time_ns)
                yield _Stretch(begin, first, last, *end, before.owner, before.depth, before.within)


def _siblings(stretches: list[_Stretch]) -> Iterator[list[_Stretch]]:
    """Yield the phases directly inside of each phase, and the outermost ones; user-named phases are
    left out.
    """
    latest: dict[tuple[int, int], int] = {}
    found: dict[tuple[int, int, int], list[_Stretch]] = {}
    for stretch in sorted(stretches, key=lambda stretch: stretch.first):
        if stretch.phase != Phase.USER:
            owner, within = stretch.owner, stretch.within
            latest[owner, within] = stretch.first
            parent = latest.get((owner, within - 1), 0)
            found.setdefault((owner, within, parent), []).append(stretch)
    yield from found.values()


def _is_gap(before: _Stretch, after: _Stretch) -> bool:
    return before.mark.thread == after.mark.thread and before.end_event < after.mark.event


def _ends_of_backward(outermost: list[_Stretch]) -> list[int]:
    """Where an iteration of a loop without an optimizer ends: after the last backward that a forward led to.

    A second backward without a forward of its own, as for a gradient penalty, belongs to the same iteration.
    Work before the next batch is loaded, such as a manual update, belongs to this iteration.
    """
    found: list[int] = []
    is_open = False
    for stretch in outermost:
        if stretch.phase == Phase.BACKWARD:
            if is_open:
                found.pop()
            found.append(stretch.last)
            is_open = True
        elif is_open and stretch.phase == Phase.DATA:
            found[-1] = stretch.first
        is_open = is_open and stretch.phase not in (Phase.FORWARD, Phase.DATA)
    return found


def _identity(stretch: _Stretch) -> tuple[int, int]:
    return stretch.mark.value, stretch.mark.name


def _anchor(optimizers: list[_Stretch]) -> tuple[int, int]:
    """The optimizer that closes a cycle: the one that steps least often; among equals the last to appear."""
    counts = Counter(map(_identity, optimizers))
    often_enough = max(counts.values()) * _RAREST_IN_CYCLE
    candidates = [identity for identity, count in counts.items() if count >= often_enough]
    return min(reversed(candidates), key=lambda identity: counts[identity])


def _with_zero_grad(ends: list[int], outermost: list[_Stretch]) -> list[int]:
    """Extend each step over the zero_grad after it, as in ``optimizer.step(); optimizer.zero_grad()``.

    If the first step begins with a zero_grad, the loop clears gradients before the forward, and what follows
    a step belongs to the next.
    """
    if next(s.phase for s in outermost if s.phase in _OPENS_A_STEP) == Phase.ZERO_GRAD:
        return ends
    found = []
    position = 0
    for end in ends:
        while position < len(outermost) and outermost[position].first < end:
            position += 1
        found.append(end)
        while position < len(outermost) and outermost[position].phase == Phase.ZERO_GRAD:
            found[-1] = outermost[position].last
            position += 1
    return found


def _between(ends: list[int], stretches: list[_Stretch], n_rows: int) -> list[_Span]:
    """Spans that end at the given marks, plus the unfinished one after the last, if it did any work.

    The first begins with the first phase that belongs to a loop: building the model is not a step. An end
    at *n_rows* is a phase that is still open.
    """
    begins = sorted(s.first for s in stretches if s.phase in _OPENS_A_STEP)
    first = begins[0] if begins and begins[0] < ends[0] else 0
    spans = [_Span(a, b) for a, b in pairwise([first, *ends])]
    if any(s.phase in _WORK for s in stretches if s.first > ends[-1]):
        spans.append(_Span(ends[-1], n_rows))
    return _without_evaluation(spans, stretches)


def _without_evaluation(spans: list[_Span], stretches: list[_Stretch]) -> list[_Span]:
    """Begin a step that follows an evaluation after the evaluation.

    An evaluation that precedes the work of more than half of all steps is part of the loop: a teacher model,
    an agent's rollout.
    """
    outermost = _outermost(stretches)
    firsts = [s.first for s in outermost]
    late = {}
    for at, span in enumerate(spans):
        before = takewhile(
            lambda s: s.phase not in _WORK,
            outermost[bisect_left(firsts, span.first) : bisect_left(firsts, span.last)],
        )
        evaluations = [s.last for s in before if s.phase == Phase.EVAL]
        if evaluations:
            late[at] = evaluations[-1]
    if 2 * len(late) > len(spans):
        return spans
    return [_Span(late.get(at, span.first), span.last) for at, span in enumerate(spans)]


def _steps(rows: list[_Mark], spans: list[_Span], n_events: int, end_ns: int) -> Steps:
    def instant(at: int) -> tuple[int, int]:
        return (rows[at].event, rows[at].time_ns) if at < len(rows) else (n_events, end_ns)

    starts = [instant(span.first) for span in spans]
    ends = [instant(span.last) for span in spans]
    return Steps.of(
        index=range(len(spans)),
        start_event=[event for event, _ in starts],
        end_event=[event for event, _ in ends],
        start_ns=[time for _, time in starts],
        end_ns=[time for _, time in ends],
    )


def _phases(stretches: list[_Stretch], spans: list[_Span], names: tuple[str, ...]) -> Phases:
    return Phases.of(
        phase=[s.phase for s in stretches],
        step=_step_of(stretches, spans),
        depth=[s.depth for s in stretches],
        start_event=[s.mark.event for s in stretches],
        end_event=[s.end_event for s in stretches],
        start_ns=[s.mark.time_ns for s in stretches],
        end_ns=[s.end_ns for s in stretches],
        thread=[s.owner for s in stretches],
        name=[s.mark.name for s in stretches],
        names=names,
    )


def _step_of(stretches: list[_Stretch], spans: list[_Span]) -> list[int]:
    """Row of the step in which each phase began, −1 for none; both lists are ordered by their first mark."""
    found = []
    at = 0
    for stretch in stretches:
        while at < len(spans) and spans[at].last <= stretch.first:
            at += 1
        inside = at < len(spans) and spans[at].first <= stretch.first
        found.append(at if inside else -1)
    return found
