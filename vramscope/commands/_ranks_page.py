"""Ranks and devices of one run beside one another: how much at once, and each at its own peak."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from vramscope.analysis._place import place
from vramscope.analysis.by_rank import RankBytes, by_rank
from vramscope.commands._document import Block, Grid, Heading, Text
from vramscope.commands._summary import Summary, has_allocator, phase_word
from vramscope.model.recording import Recording
from vramscope.units import format_bytes

_WORTH_SAYING = 0.05
"""Of the median: what a rank needs beyond that is what the others' devices have for nothing."""


def ranks(summaries: Sequence[Summary]) -> Iterator[Block]:
    """Nothing for one recording, or where there is no clock that all have."""
    recordings = _compared(summaries)
    if not recordings:
        return
    found = by_rank(recordings[0], recordings[1:])
    total = found.total_bytes
    yield Heading(f"All {len(found)} together: {format_bytes(total)} allocated when that was most")
    yield from _uneven(found)
    rows = tuple(_row(*row, total) for row in zip(found.names, recordings, _listed(found), strict=True))
    yield Grid(("", "at that moment", "share", "reserved", "own peak", "own peak in"), rows, "lrrrrl")


def ranks_as_json(summaries: Sequence[Summary]) -> dict[str, Any] | None:
    """The same for machines; None where there is nothing to compare."""
    recordings = _compared(summaries)
    if not recordings:
        return None
    found = by_rank(recordings[0], recordings[1:])
    return {
        "aligned": found.aligned,
        "time_ns": found.moment_ns,
        "allocated_bytes": found.total_bytes,
        "rows": [
            {
                "rank": row["rank"],
                "device": row["device"],
                "allocated_bytes": row["allocated"],
                "reserved_bytes": row["reserved"],
                "own_peak_allocated_bytes": row["own_peak"],
                "is_within": bool(row["is_within"]),
            }
            for row in _listed(found)
        ],
    }


def _compared(summaries: Sequence[Summary]) -> list[Recording]:
    found = [summary.recording for summary in summaries if has_allocator(summary.recording)]
    has_clock = all(recording.trace.has_clock for recording in found if len(recording.trace))
    return found if len(found) > 1 and has_clock else []


def _listed(found: RankBytes) -> list[dict[str, int]]:
    columns = {name: column.tolist() for name, column in found.columns()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _row(name: str, recording: Recording, row: dict[str, int], total: int) -> tuple[str, ...]:
    held = format_bytes(row["allocated"]) + ("" if row["is_within"] else " (not recorded then)")
    share = f"{100 * row['allocated'] / total:.1f} %" if total else ""
    step, phase = place(recording, row["own_instant"])
    when = "" if step is None else f"step {step}"
    where = "" if phase is None else phase_word(phase).replace("_", " ")
    peak_in = " ".join(filter(None, [when, where]))
    return name, held, share, format_bytes(row["reserved"]), format_bytes(row["own_peak"]), peak_in


def _uneven(found: RankBytes) -> Iterator[Block]:
    """Whether one needs clearly more than the others."""
    peaks = found.own_peak.tolist()
    usual, most = int(median(peaks)), max(peaks)
    if most - usual > _WORTH_SAYING * usual:
        name = found.names[peaks.index(most)]
        more = format_bytes(most - usual)
        yield Text(f"{name} peaks {more} above the median of all: the memory is not evenly spread", "warning")
