"""Divides the allocations of the lines that grow among the variables that keep them."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from vramscope.analysis.leaks.growth import window
from vramscope.analysis.leaks.holders import LEAST_STEPS_HELD, Held, base_of, bound_of, group_of, older_half
from vramscope.analysis.leaks.levels import Levels
from vramscope.model.table import Array

_WARM_UP = 1
_LEAST_SHARED = 0.5
"""Share of a second holder's steps in which the first one keeps blocks of the same line, too. Blocks that are
reached by another path in a later search are of other steps."""

_Any = TypeVar("_Any", bound=Hashable)


def most_frequent(values: Sequence[_Any]) -> _Any | None:
    """Return the value that occurs most often, the first of equals; None if there is none."""
    return Counter(values).most_common(1)[0][0] if values else None


def grouped(levels: Levels, holdings: Mapping[int, Held], grows: Mapping[int, Array]) -> dict[str, Array]:
    """Return the growing rows by their holder; rows without a known holder join the only holder, if one."""
    groups: dict[str, list[Array]] = defaultdict(list)
    bounded = set()
    for rows in grows.values():
        for root, part in _by_root(levels, holdings, rows).items():
            groups[root].append(part)
            if are_bounded(evidence_of(levels, holdings, part)):
                bounded.add(root)
    held_by = [root for root in groups if root]
    # A buffer with a bound takes nothing over that may be a leak.
    if "" in groups and len(held_by) == 1 and held_by[0] not in bounded:
        groups[held_by[0]] += groups.pop("")
    return {root: np.sort(np.concatenate(parts)) for root, parts in groups.items()}


def _by_root(levels: Levels, holdings: Mapping[int, Held], rows: Array) -> dict[str, Array]:
    """Return the rows of one line by the variable that holds them.

    One mistake usually keeps what one line allocates, and a second root is another path to the same objects.
    Containers that keep different blocks of the same steps are different holders.
    """
    usual = most_frequent([group_of(holding) for holding in evidence_of(levels, holdings, rows)])
    if usual is None:
        return {"": rows}
    of_row = {row: group_of(holdings[row]) for row in rows.tolist() if row in holdings}
    apart = _holders_apart(levels, {row: holdings[row] for row in of_row}, usual)
    if len(apart) < 2:
        return {usual: rows}
    place = _place_in_step(levels, rows)
    by_place: dict[int, list[str]] = defaultdict(list)
    for row, at in zip(rows.tolist(), place.tolist(), strict=True):
        if of_row.get(row) in apart:
            by_place[at].append(of_row[row])
    group = np.array(
        [
            of_row[row] if of_row.get(row) in apart else most_frequent(by_place[at]) or usual
            for row, at in zip(rows.tolist(), place.tolist(), strict=True)
        ]
    )
    return {name: rows[group == name] for name in dict.fromkeys(group.tolist())}


def _holders_apart(levels: Levels, holdings: Mapping[int, Held], usual: str) -> set[str]:
    """Return the groups whose containers keep blocks of the same steps as the *usual* one.

    The keys of one dict and the items of one list are no holders of their own.
    """
    steps: dict[str, set[int]] = defaultdict(set)
    base: dict[str, str] = {}
    for row, holding in holdings.items():
        if holding.grows_at >= 0:
            group = group_of(holding)
            steps[group].add(int(levels.born[row]))
            base[group] = base_of(holding)
    return {
        group
        for group, own in steps.items()
        if (group == usual or base[group] != base.get(usual))
        and len(own) >= LEAST_STEPS_HELD
        and len(own & steps[usual]) >= _LEAST_SHARED * len(own)
    }


def _place_in_step(levels: Levels, rows: Array) -> Array:
    """Return for each row how many of *rows* were allocated before it in its step."""
    order = np.lexsort((levels.found.alloc_event[rows], levels.born[rows]))
    born = levels.born[rows][order]
    place = np.empty(len(rows), "i8")
    place[order] = np.arange(len(rows)) - np.searchsorted(born, born)
    return place


def are_bounded(holdings: Sequence[Held]) -> bool:
    """Return whether most of the holders are containers with a bound."""
    return 2 * sum(bound_of(holding) is not None for holding in holdings) > len(holdings)


def stayed(levels: Levels, rows: Array, *, earliest: int | None = None) -> Array:
    """Return those of *rows* that were allocated since the first step compared and stay to the end.

    With *earliest*, since that step, if it is before. If there are too few (one block grows and is made again
    each time), all rows since then.
    """
    first = window(len(levels.at))
    since = rows[levels.born[rows] >= (first if earliest is None else min(earliest, first))]
    stays = since[levels.gone[since] == len(levels.at)]
    # With one block a step, fewer than half of the steps means temporaries of the last steps.
    n_steps = len(levels.at) - first
    return stays if 2 * len(np.unique(levels.born[stays])) >= n_steps else since


def evidence_of(levels: Levels, holdings: Mapping[int, Held], rows: Array) -> list[Held]:
    """Return the holders of the older half of *rows*, without those of the warm-up.

    A holder of a leak keeps blocks of several steps; a variable with blocks of one or two steps belongs to
    the step itself. Holders may have been recorded long before the end.
    """
    old = stayed(levels, rows, earliest=_WARM_UP)
    if (levels.gone[old] < len(levels.at)).any():
        return older_half(old, holdings)  # one block, made again each time
    # What was searched for in an earlier epoch may be gone, and the same line goes on as it did.
    for mine in (old, rows):
        steps: dict[str, set[int]] = defaultdict(set)
        for row in mine.tolist():
            if row in holdings:
                steps[group_of(holdings[row])].add(int(levels.born[row]))
        found = older_half(mine, holdings)
        found = [holding for holding in found if len(steps[group_of(holding)]) >= LEAST_STEPS_HELD]
        if found:
            break
    # What a tuple holds as well may be a sample of what something else keeps, as of a replay buffer.
    return [
        each for each in found if each.has("graph") or (*each.words, ())[1][::2] != ("item", "tuple")
    ] or found
