"""Decides which updates of several optimizers end a step.

A GAN's optimizers step in turn, a critic some times to one step of the generator: a turn of all of them is
one step. An optimizer that takes over from another one, as in the next phase, fold or trial of a program,
ends a step whenever it steps. What tells them apart is near: an optimizer that closes turns comes back soon,
and steps once or twice at a time.
"""

from collections import Counter
from collections.abc import Hashable, Mapping
from itertools import groupby
from typing import Any, NamedTuple

_MOST_OF_ONE = 20
"""The most updates of one optimizer in a turn that another one closes: a generator steps once per 1 to 10
steps of its critic, an optimizer that steps once an epoch closes no turn."""
_MOST_OF_ALL = 24
_MOST_OF_A_FRAME = 12
"""The most calls of other modules after the first of a frame."""
_CLOSES = 2
"""The most updates in a row of an optimizer that closes turns; where epochs alternate, all have more."""
_FIRST_TURN = 3
"""The most optimizers whose only updates so far are one turn, and not a trial of one update each."""
REACH = 3 * _MOST_OF_ALL + 4 * _CLOSES
"""Whether an update ends a step does not depend on updates that are farther away."""


class _Streak(NamedTuple):
    """Updates of one optimizer in a row, with the positions of its neighboring runs among all runs."""

    of: Any
    first: int
    end: int
    before: int = -1
    after: int = -1

    @property
    def is_short(self) -> bool:
        return self.end - self.first <= _CLOSES


def ends_of_steps(updates: list[Any], order: Mapping[Hashable, int]) -> list[bool]:
    """Return whether each update ends a step.

    *updates* are the optimizer of each, in order; *order* is their place in the order of their first updates.
    """
    ends = [True] * len(updates)
    if len(order) < 2:
        return ends
    runs = _runs(updates)
    if len(set(updates)) == len(order) and _is_first_turn(updates, runs):
        turn = _first_return(updates)
        return [at == turn - 1 for at in range(len(updates))]
    for at in range(len(runs)):
        if _is_turn(runs, at):
            for first, end in _inside_of_turn(runs, at, order):
                ends[first:end] = [False] * (end - first)
    return ends


def begins_of_turns(calls: list[Any], order: Mapping[Hashable, int]) -> list[bool]:
    """Return whether each outermost call begins a step of a program that does not train.

    *calls* are the module of each, in order, and *order* is that of their first calls. Modules that are
    called once or twice at a time, in turn, are the parts of one frame, which begins with the first of them.
    """
    begins, runs = [True] * len(calls), _runs(calls)
    n_held = [0] * len(runs)
    for at, run in enumerate(runs):
        n_left = run.after - at - 1
        if not 0 < n_left <= _MOST_OF_A_FRAME:  # the last frame of its kind has as many as the one before
            n_left = n_held[run.before] if run.before >= 0 and at - run.before <= _MOST_OF_A_FRAME + 1 else 0
        left = runs[at + 1 : at + 1 + n_left]
        if left and run.is_short and all(each.is_short and order[each.of] > order[run.of] for each in left):
            n_held[at] = len(left)
            begins[run.first + 1 : left[-1].end] = [False] * (left[-1].end - run.first - 1)
    return begins


def _runs(updates: list[Any]) -> list[_Streak]:
    runs: list[_Streak] = []
    latest: dict[Any, int] = {}
    for of, group in groupby(updates):
        first = runs[-1].end if runs else 0
        before = latest.get(of, -1)
        if before >= 0:
            runs[before] = runs[before]._replace(after=len(runs))
        latest[of] = len(runs)
        runs.append(_Streak(of, first, first + len(list(group)), before))
    return runs


def _is_first_turn(updates: list[Any], runs: list[_Streak]) -> bool:
    """Whether nothing but a first turn, and the beginning of the second one, is there so far."""
    turn = _first_return(updates)
    if turn == len(updates):
        return len(runs) == turn <= _FIRST_TURN
    of_turn = [run for run in runs if run.first < turn]
    is_turn = of_turn[-1].is_short and max(Counter(updates[:turn]).values()) <= _MOST_OF_ONE
    return is_turn and len(updates) < 2 * turn and updates[turn:] == updates[: len(updates) - turn]


def _first_return(updates: list[Any]) -> int:
    """Return where the first optimizer steps again after another one; the number of updates if never."""
    others = (at for at, of in enumerate(updates) if of != updates[0])
    other = next(others, len(updates))
    return next((at for at in range(other, len(updates)) if updates[at] == updates[0]), len(updates))


def _is_turn(runs: list[_Streak], at: int) -> bool:
    """Whether the optimizer of a run may close the turn that lasts until its next run."""
    run = runs[at]
    if run.after < 0 or not (run.is_short and runs[run.after].is_short):
        return False
    if runs[run.after].first - run.end > _MOST_OF_ALL:
        return False
    counts: Counter[Any] = Counter()
    for other in runs[at + 1 : run.after]:
        counts[other.of] += other.end - other.first
    return max(counts.values()) <= _MOST_OF_ONE


def _inside_of_turn(runs: list[_Streak], at: int, order: Mapping[Hashable, int]) -> list[tuple[int, int]]:
    """Return the updates from one run of an optimizer to its next run that end no step.

    Before the first turn and after the last one there are as many as within a turn, or fewer.
    """
    run, after = runs[at], runs[at].after
    is_first = run.before < 0 or not _is_turn(runs, run.before)
    is_last = not _is_turn(runs, after)
    held = _held(runs, at, order, is_regular=not (is_first and is_last))
    if not held:
        return []
    n_held = sum(other.end - other.first for other in held)
    inside = [(other.first, other.end) for other in held]
    inside += [(run.first, run.end - 1), (runs[after].first, runs[after].end - 1)]
    if is_first:
        earliest = runs[run.before].end if run.before >= 0 else 0
        inside.append((max(run.first - n_held, earliest), run.first))
    left, end = runs[after + 1 : after + 2 + n_held], runs[-1].end
    if end - runs[after].end <= n_held and {other.of for other in left} <= {other.of for other in held}:
        inside.append((runs[after].end, end))
    return inside


def _held(runs: list[_Streak], at: int, order: Mapping[Hashable, int], *, is_regular: bool) -> list[_Streak]:
    """Return the runs of others that a turn holds open: of optimizers that could not close it better.

    These step more often or more at a time, or began before; or they are made anew in each of several turns.
    """
    run = runs[at]
    gap = runs[at + 1 : run.after]
    n_runs = Counter(other.of for other in gap)
    return [
        other
        for other in gap
        if n_runs[other.of] > 1
        or not other.is_short
        or order[other.of] < order[run.of]
        or (is_regular and _is_alone(runs, other))
    ]


def _is_alone(runs: list[_Streak], run: _Streak) -> bool:
    before = run.before >= 0 and run.first - runs[run.before].end <= _MOST_OF_ALL
    after = run.after >= 0 and runs[run.after].first - run.end <= _MOST_OF_ALL
    return not (before or after)
