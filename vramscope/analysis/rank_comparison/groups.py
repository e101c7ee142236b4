"""Groups ranks that hold the same lines in the same amounts, such as the ranks of one pipeline stage.

Ranks of one stage or of one shard differ a little (padding, routing), ranks of different stages a lot. How
much a little is follows from the ranks themselves: from the distance of each one to its nearest neighbor.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.rank_comparison.members import MemberTable

_LEAST_DISTANCE = 0.03
"""The share of the peak by which members of a group may differ in any case, summed over lines."""
_TIMES_NEIGHBOR = 3.0
_SAMPLED = 256
"""The number of members whose nearest neighbor is searched: all pairs of 10,000 would take a minute."""
_MOST_GROUPS = 64
STAGE = "pipeline"


def groups_of(table: MemberTable) -> NDArray[Any]:
    """The number of the group of each member.

    Where ranks know their pipeline stage, ranks of different stages are never in one group.
    """
    stages = [member.whole.process.mesh.get(STAGE, -1) for member in table.members]
    found = np.full(len(table.members), -1)
    n_groups = 0
    for stage in sorted(set(stages)):
        rows = np.flatnonzero(np.array(stages) == stage)
        here = _alike(table.line_bytes[rows], table.allocated_bytes[rows])
        found[rows] = here + n_groups
        n_groups += int(here.max(initial=-1)) + 1
    return found


def _alike(lines: NDArray[Any], allocated: NDArray[Any]) -> NDArray[Any]:
    n = len(lines)
    if n < 3:
        distance = _distance(lines, allocated, 0) if n else np.zeros(0)
        return (distance > _LEAST_DISTANCE).astype("i8")
    limit = max(_LEAST_DISTANCE, _TIMES_NEIGHBOR * _usual_neighbor(lines, allocated))
    of = np.full(n, -1)
    leaders: list[int] = []
    while (of < 0).any() and len(leaders) < _MOST_GROUPS:
        leader = _central(allocated, np.flatnonzero(of < 0))
        near = (of < 0) & (_distance(lines, allocated, leader) <= limit)
        near[leader] = True
        of[near] = len(leaders)
        leaders.append(leader)
    return _with_strays(lines, allocated, of, leaders)


def _with_strays(
    lines: NDArray[Any], allocated: NDArray[Any], of: NDArray[Any], leaders: list[int]
) -> NDArray[Any]:
    """Put members of tiny groups into the nearest real one, where they are odd."""
    n = len(of)
    fewest = 2 if n < 16 else max(3, n // 64)
    size = np.bincount(of[of >= 0], minlength=len(leaders))
    real = np.flatnonzero(size >= fewest)
    if not len(real):
        # Nobody is like anybody else: each is a group of its own.
        return np.where(of < 0, len(leaders), of)
    distance = np.stack([_distance(lines, allocated, leaders[group]) for group in real.tolist()])
    nearest = real[distance.argmin(axis=0)]
    is_stray = (of < 0) | ~np.isin(of, real)
    found = np.where(is_stray, nearest, of)
    return np.unique(found, return_inverse=True)[1].reshape(-1)


def _distance(lines: NDArray[Any], allocated: NDArray[Any], row: int) -> NDArray[Any]:
    """The distance of every member to one, as a share of the larger peak."""
    apart = np.abs(lines - lines[row]).sum(axis=1)
    scale = np.maximum(np.maximum(allocated, allocated[row]), 1.0)
    # Where no lines are known, the peaks themselves are compared.
    return np.maximum(apart, np.abs(allocated - allocated[row])) / scale


def _usual_neighbor(lines: NDArray[Any], allocated: NDArray[Any]) -> float:
    """The median distance of a member to its nearest neighbor."""
    n = len(lines)
    sample = np.unique(np.linspace(0, n - 1, min(n, _SAMPLED)).astype("i8"))
    nearest = []
    for row in sample.tolist():
        distance = _distance(lines[sample], allocated[sample], int(np.searchsorted(sample, row)))
        distance[np.searchsorted(sample, row)] = np.inf
        nearest.append(distance.min())
    return float(np.median(nearest))


def _central(allocated: NDArray[Any], rows: NDArray[Any]) -> int:
    """The member among *rows* whose peak is the median: a leader at the edge would split its group."""
    order = rows[np.argsort(allocated[rows], kind="stable")]
    return int(order[len(order) // 2])
