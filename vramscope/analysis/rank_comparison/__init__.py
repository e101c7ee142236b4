"""Compares all ranks of a job: groups of like ranks, missing, ended and odd ones, and the line that differs.

It works on summaries alone, so 10,000 ranks are compared in seconds. The words for ranks that differ
are the same in the terminal and on the pages.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from vramscope.analysis.lines import Line, line_words
from vramscope.analysis.rank_comparison.clocks import Clocks, clocks_of
from vramscope.analysis.rank_comparison.members import (
    Member,
    MemberKey,
    MemberTable,
    groups_of,
    is_embedding,
    table_of,
)
from vramscope.analysis.rank_comparison.odd import (
    FirstFailure,
    Imbalance,
    Odd,
    Stray,
    failed_first,
    imbalance_of,
    odd_ones,
    shared_devices,
    strays,
)
from vramscope.model.rank_summary import LineBytes, RankSummary
from vramscope.model.recording import Outcome
from vramscope.package_data import words
from vramscope.units import format_bytes, format_share


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Ranks that hold alike."""

    rows: tuple[MemberKey, ...]
    """The members, ascending by rank and device."""
    allocated_median_bytes: int
    """The median of the members' peaks of allocated bytes."""
    allocated_max_bytes: int
    reserved_median_bytes: int
    reserved_max_bytes: int
    typical: MemberKey
    """The member whose peak is the median."""
    line: LineBytes | None = None
    """The line in which this group differs most from the first group; None for the first."""
    line_bytes: int = 0
    """The difference of its bytes there; negative where this group holds less."""
    embedding_bytes: int = 0
    """The bytes of embeddings' parameters beyond those of the group that has the fewest."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A rank that ended otherwise than by finishing."""

    rank: int
    host: str
    outcome: Outcome
    error: str
    time_ns: int
    """Unix time of its last record, on the clock of the first rank's host."""
    last_step: int | None


@dataclass(frozen=True, slots=True)
class Fleet:
    """All ranks of one job, compared."""

    world_size: int
    n_ranks: int
    """The number of ranks that have a summary."""
    missing: tuple[int, ...]
    running: tuple[int, ...]
    ended: tuple[Ended, ...]
    """Ranks that failed or died, the earliest first."""
    groups: tuple[RankGroup, ...]
    """The largest first."""
    odd: tuple[Odd, ...]
    """The most bytes first."""
    failure: FirstFailure | None
    imbalance: Imbalance | None
    clocks: Clocks
    sharing: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Devices that several ranks use: host and device, and the ranks."""
    strays: tuple[Stray, ...] = ()
    """What ranks hold on such devices while they work on their own."""
    restarts: Mapping[int, int] = field(default_factory=dict)
    """The number of restarts, by rank, of ranks that were restarted."""


def compare_ranks(summaries: Sequence[RankSummary], restarts: Mapping[int, int] | None = None) -> Fleet:
    """Compare all ranks of one job.

    The order of *summaries*, one per rank, does not matter; *restarts* are counted by rank.
    """
    ordered = sorted(summaries, key=lambda each: each.process.rank)
    clocks = clocks_of(ordered)
    members = [
        Member(each, device)
        for each in ordered
        for device in sorted(each.devices, key=lambda known: known.device.index)
    ]
    sharing = shared_devices(members)
    away = strays(members, sharing)
    # A rank is compared by the devices that it works on, not by what it holds on those of others.
    elsewhere, at_work = (
        {(each.rank, each.device) for each in away},
        {each.rank for each in members if each.summary.n_events},
    )
    elsewhere |= {each.key for each in members if not each.summary.n_events and each.rank in at_work}
    members = [each for each in members if each.key not in elsewhere]
    table = table_of(members)
    of = groups_of(table)
    ranks = {each.process.rank for each in ordered}
    world_size = max((each.process.world_size for each in ordered), default=0)
    ended = _ended(ordered, clocks)
    gone = {each.rank for each in ended}
    return Fleet(
        world_size=max(world_size, len(ranks)),
        n_ranks=len(ranks),
        missing=tuple(sorted(set(range(world_size)) - ranks)),
        running=tuple(each.process.rank for each in ordered if each.outcome is Outcome.RUNNING),
        ended=ended,
        groups=_groups(table, of),
        odd=odd_ones(table, of, gone),
        failure=failed_first(table, of, clocks),
        imbalance=imbalance_of(members, of),
        clocks=clocks,
        sharing=sharing,
        strays=away,
        restarts=dict(restarts or {}),
    )


def _ended(summaries: Sequence[RankSummary], clocks: Clocks) -> tuple[Ended, ...]:
    found = [
        Ended(
            each.process.rank,
            each.process.host,
            each.outcome,
            each.error,
            each.ended_ns - clocks.offset_ns.get(each.process.host, 0),
            _last_step(each),
        )
        for each in summaries
        if each.outcome in (Outcome.FAILED, Outcome.DIED)
    ]
    return tuple(sorted(found, key=lambda each: (each.time_ns, each.rank)))


def _last_step(summary: RankSummary) -> int | None:
    rows = [device.steps for device in summary.devices if len(device.steps)]
    return max((int(steps.step[-1] + steps.n_steps[-1] - 1) for steps in rows), default=None)


def _groups(table: MemberTable, of: np.ndarray) -> tuple[RankGroup, ...]:
    found: list[RankGroup] = []
    order = sorted(set(of.tolist()), key=lambda g: (-int((of == g).sum()), int(np.flatnonzero(of == g)[0])))
    first: np.ndarray | None = None
    embeddings = np.array([is_embedding(line) for line in table.examples], "?")
    for number in order:
        rows = np.flatnonzero(of == number)
        allocated, reserved = table.allocated_bytes[rows], table.reserved_bytes[rows]
        middle = np.median(table.line_bytes[rows], axis=0)
        typical = rows[int(np.abs(allocated - np.median(allocated)).argmin())]
        group = RankGroup(
            rows=tuple(table.members[row].key for row in rows.tolist()),
            allocated_median_bytes=int(np.median(allocated)),
            allocated_max_bytes=int(allocated.max()),
            reserved_median_bytes=int(np.median(reserved)),
            reserved_max_bytes=int(reserved.max()),
            typical=table.members[int(typical)].key,
            embedding_bytes=int(middle[embeddings].sum()),
        )
        if first is None:
            first = middle
        elif len(middle):
            at = int(np.abs(middle - first).argmax())
            if middle[at] != first[at]:
                group = replace(group, line=table.examples[at], line_bytes=int(middle[at] - first[at]))
        found.append(group)
    fewest = min((group.embedding_bytes for group in found), default=0)
    return tuple(replace(group, embedding_bytes=group.embedding_bytes - fewest) for group in found)


_CLAIMS, _CAUSES = (words(__file__, "odd.tsv", kind) for kind in ("why", "cause"))


def odd_words(odd: Odd) -> str:
    """State how one rank differs from its group, and the line that makes the difference."""
    sizes = {"size": abs(odd.n_bytes), "usual": odd.usual_bytes, "rate": odd.bytes_per_step or 0}
    claim = _CLAIMS[odd.why].format(**{name: format_bytes(size) for name, size in sizes.items()})
    line = ""
    if odd.line_bytes:
        sign = "more" if odd.line_bytes > 0 else "less"
        line = f"; {format_bytes(abs(odd.line_bytes))} {sign} at {rank_line_words(odd.line)}"
    cause = _CAUSES.get(odd.cause or "", "")
    device = f", device {odd.device}" if odd.device else ""
    return f"rank {odd.rank}{device} ({odd.host}) {claim}{line}{cause}"


def group_words(group: RankGroup) -> str:
    """State what a group holds that others do not; '' for nothing."""
    said = []
    if group.line_bytes:
        sign = "+" if group.line_bytes > 0 else "−"
        said.append(f"{sign}{format_bytes(abs(group.line_bytes))} {rank_line_words(group.line)}")
    if group.embedding_bytes:
        said.append(f"holds {format_bytes(group.embedding_bytes)} of embeddings that others do not")
    return "; ".join(said)


_ALIKE_FRACTION = 0.0005
"""Below this share of the median the ranks count as alike: it would be shown as 0.0 %."""


def imbalance_words(found: Imbalance) -> str:
    """State which rank exceeds the median of its group most, in which step, how it usually is, and why."""
    if found.allocated_bytes <= found.median_bytes:
        return "no rank peaks above the median of its group in any step"
    last = found.step + found.n_steps - 1
    step = f"step {found.step}" if found.n_steps == 1 else f"steps {found.step} to {last}"
    most, median = format_bytes(found.allocated_bytes), format_bytes(found.median_bytes)
    said = [
        f"rank {found.rank} is furthest above the median of its group, in {step}: {most} (median {median})"
    ]
    if found.n_compared > 1 and found.usual_fraction < _ALIKE_FRACTION:
        said.append("in at least half of the steps the fullest rank is less than 0.05 % above the median")
    elif found.n_compared > 1:
        share = format_share(found.usual_fraction, 1)
        said.append(f"in a typical step the fullest rank is {share} above the median")
    return "; ".join(said)


def median_and_most_words(median: int, most: int) -> str:
    """Format the median of a group, and its maximum where that reads otherwise."""
    same = format_bytes(median)
    return same if format_bytes(most) == same else f"{same}, at most {format_bytes(most)}"


def notes_of_ranks(summaries: Iterable[RankSummary]) -> list[tuple[str, tuple[int, ...]]]:
    """Return one note of each kind, with all ranks that have one of this kind."""
    texts: dict[str, str] = {}
    ranks: dict[str, set[int]] = {}
    for summary in summaries:
        for note in (note for device in summary.devices for note in device.notes):
            texts.setdefault(note.code, note.text)
            ranks.setdefault(note.code, set()).add(summary.process.rank)
    return [(text, tuple(sorted(ranks[code]))) for code, text in texts.items()]


def rank_line_words(line: LineBytes | None) -> str:
    """Format a line of a summary with its caller; the words for lines without a stack where None."""
    if line is None or not line.frames:
        return "lines without a stack"
    return line_words(Line(line.n_bytes, line.n_blocks, line.frames[:2], line.via, 0))
