"""Pairs the marks at which phases begin and end, and nests the phases of each thread."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramscope.model.marks import MarkKind, Marks, Phase

REGION = 0
"""The thread of a ``record_function`` region, which torch records without one."""
_LEADS_TO_BACKWARD = frozenset({Phase.FORWARD, Phase.LOSS, Phase.BACKWARD})


class Mark(NamedTuple):
    """One row of the marks."""

    at: int
    """Its row among all marks of the device."""
    kind: int
    phase: int
    time_ns: int
    event: int
    thread: int
    value: int
    name: int


class End(NamedTuple):
    """Where the marks end, which is where open phases and steps end as well."""

    n_rows: int
    n_events: int
    time_ns: int


@dataclass(slots=True)
class Stretch:
    """A phase between two marks; *last* is the number of marks while the phase is open."""

    mark: Mark
    phase: int
    first: int
    last: int
    end_event: int
    end_ns: int
    owner: int
    """The thread that the phase belongs to: of a phase on a thread of autograd the one that waits for it."""
    depth: int = 0
    within: int = 0
    """The number of enclosing phases that are not merely named by the user (``record_function``)."""
    outer: "Stretch | None" = None
    """The outermost of these."""


def marks_at(marks: Marks, rows: NDArray[np.int64]) -> list[Mark]:
    """Return the *rows* of the marks that steps and phases follow from."""
    rows = rows[~np.isin(marks.kind[rows], (MarkKind.MODULE, MarkKind.THREAD, MarkKind.METADATA))]
    columns = (column[rows].tolist() for _, column in marks.columns())
    return [Mark(*row) for row in zip(rows.tolist(), *columns, strict=True)]


def stretches_of(rows: list[Mark], end: End) -> list[Stretch]:
    """Pair begins with ends per thread; an end also closes inner phases that an exception left open."""
    found: list[Stretch] = []
    threads: dict[int, list[Stretch]] = {}
    for row in rows:
        if row.kind == MarkKind.PHASE_BEGIN:
            stretch = Stretch(row, row.phase, row.at, end.n_rows, end.n_events, end.time_ns, row.thread)
            found.append(stretch)
            threads.setdefault(row.thread, []).append(stretch)
        elif row.kind == MarkKind.PHASE_END:
            _close(threads.get(row.thread, []), row)
        elif row.kind == MarkKind.EXIT and row.value == 0:
            for stack in threads.values():
                _end(stack, row)
    return found


def _close(stack: list[Stretch], row: Mark) -> None:
    for position in reversed(range(len(stack))):
        if (stack[position].mark.phase, stack[position].mark.name) == (row.phase, row.name):
            closed = stack[position:]
            del stack[position:]
            _end(closed, row)
            return


def _end(stack: list[Stretch], row: Mark) -> None:
    for stretch in stack:
        stretch.last, stretch.end_event, stretch.end_ns = row.at, row.event, row.time_ns
    stack.clear()


def nest(stretches: list[Stretch], helpers: frozenset[int]) -> None:
    """Set the owner and the depth of each phase.

    A phase is inside of the open phases of its own thread. A recompute on a thread of autograd is inside the
    backward that the calling thread waits in.
    """
    around: list[Stretch] = []
    for stretch in stretches:
        around = [open_one for open_one in around if open_one.last > stretch.first]
        outer = around
        if stretch.mark.thread in helpers:
            stretch.owner = _waiting(stretch, around, helpers)
        elif stretch.mark.thread != REGION:
            outer = [open_one for open_one in around if open_one.owner in (stretch.owner, REGION)]
        marked = [open_one for open_one in outer if open_one.phase != Phase.USER]
        stretch.depth, stretch.within = len(outer), len(marked)
        stretch.outer = marked[0] if marked else None
        around.append(stretch)


def working_alone(stretches: list[Stretch]) -> frozenset[int]:
    """Return the threads that work for no other: one with a backward, or a phase while no other has one.

    The others are those of autograd and the replicas of DataParallel.
    """
    threads = {stretch.mark.thread for stretch in stretches} - {REGION}
    if len(threads) < 2:
        return frozenset(threads)
    alone = {stretch.mark.thread for stretch in stretches if stretch.phase == Phase.BACKWARD}
    around: list[Stretch] = []
    for stretch in stretches:
        around = [open_one for open_one in around if open_one.last > stretch.first]
        if all(open_one.mark.thread == REGION for open_one in around):
            alone.add(stretch.mark.thread)
        around.append(stretch)
    return frozenset(alone & threads)


def _waiting(stretch: Stretch, around: list[Stretch], helpers: frozenset[int]) -> int:
    """Return the thread that a helper works for; the helper itself where that may be several.

    Autograd's thread works for a thread in a backward.
    """
    own = [open_one.owner for open_one in around if open_one.mark.thread == stretch.mark.thread]
    if own:
        return own[-1]
    others = [open_one for open_one in around if open_one.mark.thread not in (*helpers, REGION)]
    backwards = {open_one.owner for open_one in others if open_one.phase == Phase.BACKWARD}
    owners = backwards or {open_one.owner for open_one in others}
    return owners.pop() if len(owners) == 1 else stretch.mark.thread


def outermost(stretches: Iterable[Stretch]) -> list[Stretch]:
    """Return the phases that are in no other, without those that the user merely named."""
    return [stretch for stretch in stretches if stretch.within == 0 and stretch.phase != Phase.USER]


def name_evaluations(stretches: list[Stretch], *, is_over: bool) -> None:
    """Give the forwards of an evaluation that runs with gradients on, and their losses, the phase EVAL.

    Such a forward is in evaluation mode, and before the next backward its module runs in training mode:
    otherwise that is a training in evaluation mode, or an attack. Where all *is_over*, none may follow.
    """
    later: dict[int, set[int] | None] = {}
    of_results: list[Stretch] = []
    for stretch in reversed(outermost(stretches)):
        trained, module = later.setdefault(stretch.owner, None if is_over else set()), stretch.mark.value
        if stretch.phase == Phase.BACKWARD:
            later[stretch.owner] = set()
        elif stretch.phase == Phase.FORWARD and module < 0 and (trained is None or -module in trained):
            for each in (stretch, *of_results):
                each.phase = Phase.EVAL
        elif stretch.phase == Phase.FORWARD and trained is not None:
            trained.add(module)
        of_results = [*of_results, stretch] if stretch.phase == Phase.LOSS else []


def losses(stretches: list[Stretch]) -> Iterator[Stretch]:
    """Yield a LOSS phase for the gap between a forward and the backward that follows it.

    The loss function is then no module. Gaps within an optimizer's closure, and between two backwards that
    one forward led to, count as well.
    """
    for siblings in _siblings(stretches):
        leads_to_backward = False
        for before, after in reversed(list(pairwise(siblings))):
            if after.phase != Phase.ZERO_GRAD:
                leads_to_backward = after.phase in (Phase.LOSS, Phase.BACKWARD)
            is_gap = before.mark.thread == after.mark.thread and before.end_event < after.mark.event
            if leads_to_backward and before.phase in _LEADS_TO_BACKWARD and is_gap:
                begin = before.mark._replace(
                    phase=int(Phase.LOSS), time_ns=before.end_ns, event=before.end_event, name=0
                )
                first, last, end = before.last, after.first, (after.mark.event, after.mark.time_ns)
                yield Stretch(
                    begin, begin.phase, first, last, *end, before.owner, before.depth, before.within
                )


def _siblings(stretches: list[Stretch]) -> Iterator[list[Stretch]]:
    """Yield the phases directly inside of each phase, and the outermost ones, without the user's."""
    latest: dict[tuple[int, int], int] = {}
    found: dict[tuple[int, int, int], list[Stretch]] = {}
    for stretch in stretches:
        if stretch.phase != Phase.USER:
            owner, within = stretch.owner, stretch.within
            latest[owner, within] = stretch.first
            parent = latest.get((owner, within - 1), 0)
            found.setdefault((owner, within, parent), []).append(stretch)
    yield from found.values()
