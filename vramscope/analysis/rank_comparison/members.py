"""The members of a comparison, a rank on a device each, and their bytes by line as a matrix.

Ranks that hold the same lines in the same amounts, such as those of one pipeline stage, form groups. Ranks
of one stage or of one shard differ a little (padding, routing), ranks of different stages a lot. How much a
little is follows from the ranks themselves: from the distance of each one to its nearest neighbor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from vramscope.model.rank_summary import DeviceSummary, LineBytes, RankSummary
from vramscope.model.recording import Outcome
from vramscope.model.table import Array

MOST_LINES = 400
"""The most lines that are compared, by their bytes in all ranks; the rest is one column."""
_FRAMES = 2
"""Two lines are the same if their innermost frames and the function they call are."""

_EMBEDDINGS = frozenset({"sparse.__init__"})
"""The constructors of ``torch.nn.Embedding`` and ``torch.nn.EmbeddingBag``, as lines call them."""

_BUCKETS = frozenset({"_ddp_init_helper", "distributed._pre_forward"})
"""What makes the buckets of DistributedDataParallel, and others in its second forward: both are one thing."""

LineKey = tuple[Any, ...]


class MemberKey(NamedTuple):
    """What identifies a member: a rank on one device."""

    rank: int
    device: int
    """The index of the device."""


class Member(NamedTuple):
    """One rank on one device."""

    whole: RankSummary
    summary: DeviceSummary

    @property
    def rank(self) -> int:
        """The number of the rank."""
        return self.whole.process.rank

    @property
    def host(self) -> str:
        """The host that the rank runs on."""
        return self.whole.process.host

    @property
    def key(self) -> MemberKey:
        """Rank and index of the device."""
        return MemberKey(self.rank, self.summary.device.index)

    @property
    def outcome(self) -> Outcome:
        """How the rank ended."""
        return self.whole.outcome


@dataclass(frozen=True, slots=True, eq=False)
class MemberTable:
    """All members, with a row of bytes each."""

    members: tuple[Member, ...]
    examples: tuple[LineBytes | None, ...]
    """The line of each column; None for the last, which has the rest."""
    line_bytes: Array
    """Bytes at the own peak, by member and line."""
    retained_bytes: Array
    """The part of these bytes that was allocated in earlier steps."""
    allocated_bytes: Array
    """The peak of allocated bytes of each member."""
    reserved_bytes: Array
    """The peak of reserved bytes of each member."""


def line_key(line: LineBytes) -> LineKey:
    """What makes two lines of different ranks the same."""
    if line.via in _BUCKETS:
        return (_BUCKETS,)
    return (*line.frames[:_FRAMES], line.via)


def table_of(members: Sequence[Member]) -> MemberTable:
    """Put the lines of all members into one matrix."""
    total: dict[LineKey, int] = {}
    examples: dict[LineKey, LineBytes] = {}
    for member in members:
        for line in (*member.summary.lines, *member.summary.retained):
            key = line_key(line)
            total[key] = total.get(key, 0) + line.n_bytes
            examples.setdefault(key, line)
    chosen = sorted(total, key=lambda key: (-total[key], repr(key)))[:MOST_LINES]
    column = {key: number for number, key in enumerate(chosen)}
    lines = np.zeros((len(members), len(chosen) + 1))
    retained = np.zeros_like(lines)
    for row, member in enumerate(members):
        lines[row, -1] = member.summary.other_bytes
        for line in member.summary.lines:
            lines[row, column.get(line_key(line), -1)] += line.n_bytes
        for line in member.summary.retained:
            retained[row, column.get(line_key(line), -1)] += line.n_bytes
    allocated, reserved = (
        np.array([member.summary.peak_bytes(quantity) for member in members], "f8")
        for quantity in ("allocated", "reserved")
    )
    columns = (*(examples[key] for key in chosen), None)
    return MemberTable(tuple(members), columns, lines, retained, allocated, reserved)


def bytes_by_line(table: MemberTable, lines: Sequence[LineBytes]) -> Array:
    """The bytes of *lines* in the columns of *table*."""
    column = {
        line_key(example): number for number, example in enumerate(table.examples) if example is not None
    }
    found = np.zeros(table.line_bytes.shape[1])
    for line in lines:
        found[column.get(line_key(line), -1)] += line.n_bytes
    return found


def is_embedding(line: LineBytes | None) -> bool:
    """Whether a line allocates the parameters of an embedding."""
    return line is not None and line.via in _EMBEDDINGS


_LEAST_DISTANCE = 0.03
"""The share of the peak by which members of a group may differ in any case, summed over lines."""
_TIMES_NEIGHBOR = 3.0
_SAMPLED = 256
"""The number of members whose nearest neighbor is searched: all pairs of 10,000 would take a minute."""
_MOST_GROUPS = 64
STAGE = "pipeline"


def groups_of(table: MemberTable) -> Array:
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


def _alike(lines: Array, allocated: Array) -> Array:
    n = len(lines)
    if n < 3:
        distance = _distance(lines, allocated, 0) if n else np.zeros(0)
        return (distance > _LEAST_DISTANCE).astype("i8")
    limit = max(_LEAST_DISTANCE, _TIMES_NEIGHBOR * _usual_neighbor(lines, allocated))
    of = np.full(n, -1)
    leaders: list[int] = []
    while (of < 0).any() and len(leaders) < _MOST_GROUPS:
        # The member among *rows* whose peak is the median: a leader at the edge would split its group.
        rows = np.flatnonzero(of < 0)
        order = rows[np.argsort(allocated[rows], kind="stable")]
        leader = int(order[len(order) // 2])
        near = (of < 0) & (_distance(lines, allocated, leader) <= limit)
        near[leader] = True
        of[near] = len(leaders)
        leaders.append(leader)
    return _with_strays(lines, allocated, of, leaders)


def _with_strays(lines: Array, allocated: Array, of: Array, leaders: list[int]) -> Array:
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


def _distance(lines: Array, allocated: Array, row: int) -> Array:
    """The distance of every member to one, as a share of the larger peak."""
    apart = np.abs(lines - lines[row]).sum(axis=1)
    scale = np.maximum(np.maximum(allocated, allocated[row]), 1.0)
    # Where no lines are known, the peaks themselves are compared.
    return np.maximum(apart, np.abs(allocated - allocated[row])) / scale


def _usual_neighbor(lines: Array, allocated: Array) -> float:
    """The median distance of a member to its nearest neighbor."""
    n = len(lines)
    sample = np.unique(np.linspace(0, n - 1, min(n, _SAMPLED)).astype("i8"))
    nearest = []
    for row in sample.tolist():
        distance = _distance(lines[sample], allocated[sample], int(np.searchsorted(sample, row)))
        distance[np.searchsorted(sample, row)] = np.inf
        nearest.append(distance.min())
    return float(np.median(nearest))


class LineDifference(NamedTuple):
    """One line with its bytes at the peak of each of two ranks."""

    line: LineBytes | None
    """The line; None for everything that is no line of its own in the summaries."""
    before_bytes: int
    after_bytes: int

    @property
    def change_bytes(self) -> int:
        """Bytes of the second rank minus bytes of the first."""
        return self.after_bytes - self.before_bytes


def differing_lines(before: DeviceSummary, after: DeviceSummary) -> list[LineDifference]:
    """Compare what two ranks held at their peaks, by line.

    The largest difference comes first. A summary holds the largest lines only, so a line that one of the two
    lists may be among the others of the other one; then both are in the last row.
    """
    lines: dict[LineKey, LineBytes] = {}
    totals: list[dict[LineKey, int]] = []
    for summary in (before, after):
        total: dict[LineKey, int] = {}
        for line in summary.lines:
            key = line_key(line)
            total[key] = total.get(key, 0) + line.n_bytes
            lines.setdefault(key, line)
        totals.append(total)
    others = [before.other_bytes, after.other_bytes]
    found = []
    for key, line in lines.items():
        held = [total.get(key, 0) for total in totals]
        cut = [key not in total and other > 0 for total, other in zip(totals, others, strict=True)]
        # Its bytes may be among the others of the rank that does not list it.
        if any(cut) and max(held) <= max(other for other, is_cut in zip(others, cut, strict=True) if is_cut):
            others = [other + n_bytes for other, n_bytes in zip(others, held, strict=True)]
            continue
        found.append(LineDifference(line, *held))
    found.sort(key=lambda each: -abs(each.change_bytes))
    rest = LineDifference(None, others[0], others[1])
    return [each for each in (*found, rest) if each.change_bytes]
