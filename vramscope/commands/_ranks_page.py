"""The comparison of a run's ranks and devices: at one moment, and each at its own peak."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from vramscope.analysis.by_rank import RankBytes, by_rank
from vramscope.analysis.peak import PeakPoint
from vramscope.analysis.rank_comparison.clocks import Clocks, on_one_clock
from vramscope.analysis.summary import Summary, has_allocator
from vramscope.commands._document import Block, Grid, Heading, Text
from vramscope.model.codes import FindingKind
from vramscope.units import format_bytes, format_count, format_duration, format_share

_WORTH_SAYING = 0.05
"""The share of the median by which one rank may exceed it before the imbalance is reported."""
_ROWS_SHOWN = 10
_HOSTS_NAMED = 5


def clock_words(clocks: Clocks) -> Iterator[Block]:
    """Yield by how much the clocks of hosts differ, and with which error that is known."""
    apart = {host: n_ns for host, n_ns in clocks.offset_ns.items() if n_ns}
    if apart:
        host = max(apart, key=lambda each: abs(apart[each]))
        sign = "ahead of" if apart[host] > 0 else "behind"
        yield Text(
            f"clocks are aligned by the ends of {clocks.n_steps:,} steps: that of {host} is "
            f"{format_duration(abs(apart[host]))} {sign} {clocks.reference}'s, "
            f"± {format_duration(max(clocks.error_ns.values()))}",
            "quiet",
        )
    if clocks.unaligned:
        hosts = ", ".join(clocks.unaligned[:_HOSTS_NAMED]) + (
            ", …" if len(clocks.unaligned) > _HOSTS_NAMED else ""
        )
        yield Text(f"clocks are not aligned, as too few steps are common to all: {hosts}", "note")


def clocks_as_json(clocks: Clocks) -> dict[str, Any]:
    """Return the clocks of all hosts as JSON."""
    return {
        "reference": clocks.reference,
        "steps": clocks.n_steps,
        "hosts": [
            {"host": host, "ahead_ns": n_ns, "error_ns": clocks.error_ns[host]}
            for host, n_ns in clocks.offset_ns.items()
        ],
        "unaligned": list(clocks.unaligned),
    }


def by_fullness(summaries: Sequence[Summary]) -> list[Summary]:
    """Return the summaries ordered by fullness.

    Recordings that ran out of memory come first, then those with the largest reserved share of the device (or
    the most reserved bytes if its size is unknown).
    """
    return sorted(summaries, key=_fullness, reverse=True)


def _fullness(summary: Summary) -> tuple[bool, float, int]:
    has_failed = any(finding.kind == FindingKind.OOM for finding in summary.findings)
    reserved, capacity = summary.peak["reserved"].n_bytes, summary.recording.device.total_bytes
    return has_failed, reserved / capacity if capacity else 0.0, reserved


def ranks(ordered: Sequence[Summary]) -> Iterator[Block]:
    """Yield the table of several recordings in the given order; nothing without a common clock."""
    compared, clocks, found = _compared(ordered)
    if found is None:
        return
    total = found.total_bytes
    yield Heading(f"All {len(found)} together: {format_bytes(total)} allocated at their common peak")
    yield from clock_words(clocks)
    peaks = found.own_peak_bytes.tolist()
    usual, most = int(median(peaks)), max(peaks)
    if most - usual > _WORTH_SAYING * usual:
        name = found.names[peaks.index(most)]
        more = format_bytes(most - usual)
        yield Text(f"{name} peaks {more} above the median of all: the memory is not evenly spread", "warning")
    yield from _strays(compared)
    highs = [summary.peak["allocated"] for summary in compared]
    rows = [_row(*row, total) for row in zip(found.names, highs, _listed(found), strict=True)]
    yield Grid(
        ("", "at that peak", "share", "reserved", "own peak", "own peak in"),
        tuple(rows[:_ROWS_SHOWN]),
        "lrrrrl",
    )
    if len(rows) > _ROWS_SHOWN:
        rest = found.own_peak_bytes[_ROWS_SHOWN:]
        lowest, highest = format_bytes(int(rest.min())), format_bytes(int(rest.max()))
        count = format_count(len(rows) - _ROWS_SHOWN, "more row")
        yield Text(f"{count}, own peaks from {lowest} to {highest} (--json)", "quiet")


def ranks_as_json(summaries: Sequence[Summary]) -> dict[str, Any] | None:
    """Return the same as JSON; None if there is nothing to compare."""
    _, clocks, found = _compared(summaries)
    if found is None:
        return None
    return {
        **({"clocks": clocks_as_json(clocks)} if clocks.offset_ns or clocks.unaligned else {}),
        "aligned": "time",
        "time_ns": found.moment_ns,
        "allocated_bytes": found.total_bytes,
        "rows": [
            {
                **{name: row[name] for name in ("rank", "device", "allocated_bytes", "reserved_bytes")},
                "own_peak_allocated_bytes": row["own_peak_bytes"],
                "is_within": bool(row["is_within"]),
            }
            for row in _listed(found)
        ],
    }


def _compared(summaries: Sequence[Summary]) -> tuple[list[Summary], Clocks, RankBytes | None]:
    """Return those with events on one clock, that clock and the comparison; None without a common clock."""
    compared = [summary for summary in summaries if has_allocator(summary.recording)]
    has_clock = all(each.recording.trace.has_clock for each in compared if len(each.recording.trace))
    if len(compared) < 2 or not has_clock:
        return compared, Clocks(), None
    recordings, clocks = on_one_clock([summary.recording for summary in compared])
    return compared, clocks, by_rank(recordings[0], recordings[1:])


def _listed(found: RankBytes) -> list[dict[str, int]]:
    columns = {name: column.tolist() for name, column in found.columns()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _row(name: str, high: PeakPoint, row: dict[str, int], total: int) -> tuple[str, ...]:
    held = format_bytes(row["allocated_bytes"]) + ("" if row["is_within"] else " (not recorded then)")
    share = format_share(row["allocated_bytes"], total)
    return name, held, share, format_bytes(row["reserved_bytes"]), format_bytes(high.n_bytes), high.where


def _strays(compared: Sequence[Summary]) -> Iterator[Block]:
    """Yield a sentence for each rank that has more on another device than on one which others use."""
    for each in compared:
        rank, device = each.recording.process.rank, each.recording.device
        mine = [other for other in compared if other.recording.process.rank == rank]
        shares = [other for other in compared if other.recording.device.uuid == device.uuid != ""]
        most = max(other.peak["allocated"].n_bytes for other in mine)
        n_bytes = each.peak["allocated"].n_bytes
        if 0 < n_bytes < most and len({other.recording.process.rank for other in shares}) > 1:
            held = f"rank {rank} holds {format_bytes(n_bytes)} on device {device.index}, which others use"
            yield Text(f"{held}: `vramscope ranks` says what to do", "warning")
