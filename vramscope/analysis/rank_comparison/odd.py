"""Finds the ranks that differ from their group, by what, in which step, and the line that makes it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from vramscope.analysis.rank_comparison.clocks import Clocks
from vramscope.analysis.rank_comparison.members import (
    Member,
    MemberTable,
    bytes_by_line,
    is_embedding,
    line_key,
)
from vramscope.model.rank_summary import DeviceSummary, LineBytes, StepRows
from vramscope.model.table import Array

_LEAST_FRACTION = 0.03
"""A rank is odd only if it differs from its group's median by at least this share of it."""
_LEAST_BYTES = 1 << 20
_TIMES_SPREAD = 6.0
"""… and by at least six times the usual spread, so that none of 10,000 like ranks is named by chance."""
_SIGMA_PER_MAD = 1.4826
_FEWEST = 3
_GATHERS = frozenset({"gather", "gather_object", "all_gather", "all_gather_object", "_gather_object"})
_FEWEST_GROWING_STEPS = 8
_FEWEST_LARGER_LINES = 3
_LARGER_FRACTION = 0.9
"""The share of the difference that larger blocks of the same lines must explain."""


@dataclass(frozen=True, slots=True)
class Odd:
    """A rank that differs from its group."""

    rank: int
    device: int
    host: str
    why: str
    """``grows``, ``more``, ``less``, ``reserves_more`` or ``others``."""
    n_bytes: int
    """The difference to the group's median: of the growth over the run, of the peak of allocated or reserved
    bytes, or of what other processes hold on the device."""
    usual_bytes: int
    """The group's median of the same."""
    bytes_per_step: int | None = None
    """The growth per step, for ``grows``."""
    line: LineBytes | None = None
    """The line that makes most of the difference; None where no line does."""
    line_bytes: int = 0
    """The difference at that line."""
    cause: str | None = None
    """``gathered_here``: the line gathers the data of other ranks. ``larger_batch``: the same lines hold as
    many blocks as in the group, and larger ones. ``embedding``: the line constructs an embedding. None where
    the cause is not certain."""


def odd_ones(table: MemberTable, of: Array, gone: set[int]) -> tuple[Odd, ...]:
    """The odd members of all groups, the most bytes first.

    *of* has the group of each. Ranks that are *gone* held less because they ended early, which is no oddity
    of its own. Each member has the first reason that holds.
    """
    found = []
    for group in np.unique(of).tolist():
        rows = np.flatnonzero(of == group)
        if len(rows) >= _FEWEST:
            found += _in_group(table, rows, gone)
    return tuple(sorted(found, key=lambda odd: (-abs(odd.n_bytes), odd.rank, odd.device)))


def _in_group(table: MemberTable, rows: Array, gone: set[int]) -> list[Odd]:
    members = [table.members[row] for row in rows.tolist()]
    allocated, reserved = table.allocated_bytes[rows], table.reserved_bytes[rows]
    growth = np.array([_growth(member.summary.steps) for member in members])
    others = np.array([member.summary.samples.get("others_used_bytes", 0) for member in members], "f8")
    middle = np.median(table.line_bytes[rows], axis=0)
    middle_retained = np.median(table.retained_bytes[rows], axis=0)
    scale = float(np.median(allocated))
    grows, differs = _exceeds(growth, scale), _exceeds(np.abs(allocated - scale), scale, usual=0.0)
    typical = members[int(np.abs(allocated - scale).argmin())].summary
    slack = reserved - allocated
    has_slack, has_others = _exceeds(slack, scale), _exceeds(others, scale)
    found = []
    for at, member in enumerate(members):
        row = int(rows[at])
        more = allocated[at] - scale
        retained = _largest(table, table.retained_bytes[row] - middle_retained)
        if grows[at] and retained is not None and retained[1] >= _LEAST_BYTES:
            usual = float(np.median(growth))
            n_steps = int(member.summary.steps.n_steps.sum())
            found.append(
                _odd(member, "grows", growth[at] - usual, usual, retained, int(growth[at] / max(n_steps, 1)))
            )
        elif differs[at] and (more > 0 or member.rank not in gone):
            sign = 1 if more > 0 else -1
            line = _largest(table, sign * (table.line_bytes[row] - middle))
            odd = _odd(member, "more" if more > 0 else "less", more, scale, line)
            if odd.cause is None and more > 0 and _has_larger_batch(member.summary, typical, more):
                odd = replace(odd, cause="larger_batch")
            found.append(odd)
        elif has_slack[at]:
            usual = float(np.median(reserved))
            found.append(_odd(member, "reserves_more", reserved[at] - usual, usual, None))
        elif has_others[at]:
            usual = float(np.median(others))
            found.append(_odd(member, "others", others[at] - usual, usual, None))
    return found


def _has_larger_batch(summary: DeviceSummary, typical: DeviceSummary, more: float) -> bool:
    """Whether a rank holds more only because blocks of several lines are larger, none of them in number.

    That is what longer sequences do (padding to the longest one of a batch), or more samples: every line of
    the forward pass allocates as often as elsewhere.
    """
    usual = {line_key(line): line for line in typical.lines}
    grown = [
        (line, usual.get(line_key(line)))
        for line in summary.lines
        if line.n_bytes > (usual[line_key(line)].n_bytes if line_key(line) in usual else 0)
    ]
    same_number = [
        line.n_bytes - known.n_bytes
        for line, known in grown
        if known is not None and line.n_blocks == known.n_blocks
    ]
    retained = sum(line.n_bytes for line in summary.retained) - sum(line.n_bytes for line in typical.retained)
    is_explained = sum(same_number) >= _LARGER_FRACTION * more and retained < (1 - _LARGER_FRACTION) * more
    # The lines of which most of the difference is made, not those that differ by a few rounded bytes.
    notable = [n_bytes for n_bytes in same_number if n_bytes > more / 100]
    return is_explained and len(notable) >= _FEWEST_LARGER_LINES


def _odd(
    member: Member,
    why: str,
    n_bytes: float,
    usual: float,
    line: tuple[LineBytes | None, int] | None,
    per_step: int | None = None,
) -> Odd:
    known, line_bytes = line if line is not None else (None, 0)
    cause = None
    if why == "more" and known is not None:
        cause = "gathered_here" if known.via in _GATHERS else "embedding" if is_embedding(known) else None
    return Odd(
        member.rank,
        member.summary.device.index,
        member.host,
        why,
        int(n_bytes),
        int(usual),
        per_step,
        known,
        line_bytes if why != "less" else -line_bytes,
        cause,
    )


def _exceeds(values: Array, scale: float, usual: float | None = None) -> Array:
    """Which values are above the usual one by more than the group's spread and by enough to matter."""
    middle = float(np.median(values)) if usual is None else usual
    spread = _SIGMA_PER_MAD * float(np.median(np.abs(values - middle)))
    return values - middle > max(_LEAST_FRACTION * scale, _LEAST_BYTES, _TIMES_SPREAD * spread)


def _largest(table: MemberTable, difference: Array) -> tuple[LineBytes | None, int] | None:
    if not len(difference) or difference.max() <= 0:
        return None
    at = int(difference.argmax())
    return table.examples[at], int(difference[at])


def _growth(steps: StepRows) -> float:
    """The bytes by which the peaks of steps rise over the run; no single step can make that up."""
    peaks = steps.allocated[steps.allocated >= 0].astype("f8")
    if len(peaks) < _FEWEST_GROWING_STEPS:
        return 0.0
    quarter = len(peaks) // 4
    # The first quarter has the warm-up; two quarters later is two thirds of the rest.
    early, late = np.median(peaks[quarter : 2 * quarter]), np.median(peaks[-quarter:])
    return float(max(late - early, 0.0)) * len(peaks) / max(len(peaks) - 2 * quarter, 1)


@dataclass(frozen=True, slots=True)
class FirstFailure:
    """The first allocation that failed in any rank."""

    rank: int
    device: int
    host: str
    step: int | None
    time_ns: int
    requested_bytes: int
    allocated_bytes: int
    n_ranks: int
    """The number of ranks in which an allocation failed."""
    excess_bytes: int
    """The bytes that it held at ``line`` beyond what its group does at the peak; 0 where it held no more."""
    line: LineBytes | None


def failed_first(table: MemberTable, of: Array, clocks: Clocks) -> FirstFailure | None:
    """The first allocation that failed in any member, on one clock; None where none did."""
    failures = [
        (failure.time_ns - clocks.offset_ns.get(member.host, 0), row, failure)
        for row, member in enumerate(table.members)
        if (failure := member.summary.failure) is not None
    ]
    if not failures:
        return None
    time_ns, row, failure = min(failures, key=lambda each: each[:2])
    member = table.members[row]
    others = np.flatnonzero((of == of[row]) & (np.arange(len(of)) != row))
    excess, line = 0, None
    if len(others):
        here = bytes_by_line(table, failure.lines)
        found = _largest(table, here - np.median(table.line_bytes[others], axis=0))
        least = max(_LEAST_FRACTION * float(np.median(table.allocated_bytes[others])), _LEAST_BYTES)
        if found is not None and found[1] > least:
            line, excess = found
    return FirstFailure(
        rank=member.rank,
        device=member.summary.device.index,
        host=member.host,
        step=failure.step,
        time_ns=time_ns,
        requested_bytes=failure.requested_bytes,
        allocated_bytes=failure.allocated_bytes,
        n_ranks=len({table.members[row].rank for _, row, _ in failures}),
        excess_bytes=excess,
        line=line,
    )


@dataclass(frozen=True, slots=True)
class Stray:
    """What a rank holds on a device of others, while it works on one of its own."""

    rank: int
    device: int
    own_device: int
    """The device on which it holds most."""
    n_bytes: int
    line: LineBytes | None
    """The line that holds most of it."""


def strays(members: Sequence[Member], sharing: Sequence[tuple[str, tuple[int, ...]]]) -> tuple[Stray, ...]:
    """The members on shared devices whose rank has more on another device, the most bytes first."""
    found = []
    shared = {device for device, _ in sharing}
    for member in members:
        peak = member.summary.peak_bytes("allocated")
        if f"{member.host} {member.summary.device.uuid}" not in shared or not peak:
            continue
        mine = [each.summary for each in members if each.rank == member.rank]
        own = max(mine, key=lambda each: each.peak_bytes("allocated"))
        if own.peak_bytes("allocated") > peak:
            line = max(member.summary.lines, key=lambda each: each.n_bytes, default=None)
            found.append(Stray(member.rank, member.summary.device.index, own.device.index, peak, line))
    return tuple(sorted(found, key=lambda each: -each.n_bytes))


def shared_devices(members: Sequence[Member]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Devices that several ranks use, by the device's own id, which no two devices share."""
    users: dict[tuple[str, str], set[int]] = {}
    for member in members:
        device = member.summary.device
        if device.uuid and device.kind == "cuda" and member.summary.n_events:
            users.setdefault((member.host, device.uuid), set()).add(member.rank)
    return tuple(
        (f"{host} {uuid}", tuple(sorted(ranks)))
        for (host, uuid), ranks in sorted(users.items())
        if len(ranks) > 1
    )


@dataclass(frozen=True, slots=True)
class Imbalance:
    """The step in which one rank exceeds its group most, and the usual excess."""

    step: int
    """The number of the step, or of the first of ``n_steps`` neighboring ones."""
    n_steps: int
    rank: int
    device: int
    allocated_bytes: int
    """The peak of that rank in that step."""
    median_bytes: int
    """The median of its group in that step."""
    usual_fraction: float
    """The median over steps of the largest excess over the group's median, as a fraction of that median."""
    n_compared: int
    """The number of steps, or of groups of steps, that were compared."""


def imbalance_of(members: Sequence[Member], of: Array) -> Imbalance | None:
    """The imbalance within groups; None where fewer than two members have a step in common."""
    size = max((int(each.summary.steps.n_steps.max(initial=1)) for each in members), default=1)
    found: list[Imbalance] = []
    for group in np.unique(of).tolist():
        rows = np.flatnonzero(of == group).tolist()
        best = _of_group([members[row] for row in rows], size)
        if best is not None:
            found.append(best)
    return max(found, key=lambda each: each.allocated_bytes - each.median_bytes, default=None)


def _of_group(members: Sequence[Member], size: int) -> Imbalance | None:
    steps = [each.summary.steps.grouped(size) for each in members]
    numbers = np.unique(np.concatenate([rows.step for rows in steps] or [np.zeros(0, "i8")]))
    if len(members) < 2 or not len(numbers):
        return None
    peaks = np.full((len(members), len(numbers)), np.nan)
    for row, known in enumerate(steps):
        peaks[row, np.searchsorted(numbers, known.step)] = np.where(
            known.allocated < 0, np.nan, known.allocated
        )
    enough = (~np.isnan(peaks)).sum(axis=0) >= 2
    peaks, numbers = peaks[:, enough], numbers[enough]
    if not len(numbers):
        return None
    # NumPy's median that skips unknown values takes ten times as long.
    middle = np.nanmedian(peaks, axis=0) if np.isnan(peaks).any() else np.median(peaks, axis=0)
    excess = np.nanmax(peaks, axis=0) - middle
    at = int(excess.argmax())
    member = int(np.nanargmax(peaks[:, at]))
    return Imbalance(
        step=int(numbers[at]),
        n_steps=size,
        rank=members[member].rank,
        device=members[member].summary.device.index,
        allocated_bytes=int(peaks[member, at]),
        median_bytes=int(middle[at]),
        usual_fraction=float(np.median(excess / np.maximum(middle, 1))),
        n_compared=len(numbers),
    )
