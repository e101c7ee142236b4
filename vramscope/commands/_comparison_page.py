"""The comparison of all ranks as JSON, and as a page of at most 45 lines, however many ranks there are."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from typing import Any

from vramscope.analysis.findings import Shared, ranks_words
from vramscope.analysis.rank_comparison import (
    Ended,
    RankGroup,
    group_words,
    imbalance_words,
    median_and_most_words,
    notes_of_ranks,
    odd_words,
    rank_line_words,
)
from vramscope.analysis.rank_comparison.odd import Odd, Stray
from vramscope.commands._document import Block, Grid, Heading, Text
from vramscope.commands._ranks_page import clock_words, clocks_as_json
from vramscope.fleet import ComparedRun
from vramscope.model.rank_summary import LineBytes, RankSummary
from vramscope.model.recording import Outcome
from vramscope.package_data import words
from vramscope.units import format_bytes, format_count

GROUPS_SHOWN, ODD_SHOWN, ENDED_SHOWN, NOTES_SHOWN = 6, 8, 5, 3
_SAID = words(__file__, "_comparison_page.tsv", "said")
_MOST_LETTERS = 160
"""The length of an error or a list of ranks: a list of 5,000 odd numbers would fill the page."""
_NOTABLE_IMBALANCE = 0.05


def comparison(compared: ComparedRun) -> Iterator[Block]:
    """Yield everything that the comparison says, without the findings."""
    fleet = compared.fleet
    yield from _counts(compared)
    yield from _ended(fleet.ended)
    if fleet.failure is not None:
        failure = fleet.failure
        step = "" if failure.step is None else f" in step {failure.step}"
        yield Text(
            f"the first allocation failed on rank {failure.rank} ({failure.host}){step}: "
            f"{format_bytes(failure.requested_bytes)} requested with {format_bytes(failure.allocated_bytes)} "
            f"allocated; allocations failed in {format_count(failure.n_ranks, 'rank')}",
            "error",
        )
        if failure.excess_bytes:
            yield Text(
                f"it held {format_bytes(failure.excess_bytes)} more than its group ever holds at "
                f"{rank_line_words(failure.line)}",
                "error",
            )
    yield from _odd(fleet.odd)
    yield from _sharing(fleet.sharing, fleet.strays)
    yield from _groups(fleet.groups)
    if fleet.imbalance is not None:
        found = fleet.imbalance
        excess = found.allocated_bytes - found.median_bytes
        is_notable = excess > _NOTABLE_IMBALANCE * max(found.median_bytes, 1)
        yield Text(imbalance_words(found), "note" if is_notable else "quiet")
    yield from clock_words(fleet.clocks)
    yield from _notes(compared.summaries)


def first_to_look_at(compared: ComparedRun) -> tuple[int, str]:
    """Return the rank to look at first, and the reason in words."""
    fleet = compared.fleet
    if fleet.failure is not None:
        return fleet.failure.rank, "the first to fail"
    if fleet.odd:
        return fleet.odd[0].rank, "the oddest of all"
    peaks = {
        summary.process.rank: max((each.peak_bytes("reserved") for each in summary.devices), default=0)
        for summary in compared.summaries
    }
    return max(peaks, key=lambda rank: (peaks[rank], -rank)), "the fullest of all"


def shared_findings(found: Sequence[Shared], compared: ComparedRun, most: int) -> Iterator[Block]:
    """Yield the gravest findings, each once with its ranks, and which ranks were searched."""
    from vramscope.commands._summary_page import findings_page

    yield from findings_page(found[:most], n_recordings=compared.fleet.n_ranks)
    if len(found) > most:
        yield Text(f"{format_count(len(found) - most, 'more finding')} (--json)", "quiet")
    if len(compared.searched) < compared.fleet.n_ranks:
        yield Text(_SAID["searched"].format(ranks=_ranks(compared.searched)), "quiet")


def _counts(compared: ComparedRun) -> Iterator[Block]:
    fleet = compared.fleet
    hosts = {summary.process.host for summary in compared.summaries}
    where = f" on {len(hosts):,} hosts" if len(hosts) > 1 else ""
    running = f", {len(fleet.running):,} still running" if fleet.running else ""
    yield Text(f"{fleet.n_ranks:,} of {format_count(fleet.world_size, 'rank')} recorded{where}{running}")
    if fleet.missing:
        yield Text(f"nothing was recorded by {_ranks(fleet.missing)}", "warning")
    for rank, reason in compared.unreadable[:2]:
        yield Text(f"rank {rank} cannot be read: {_short(reason)}", "warning")
    if fleet.restarts:
        yield Text(_SAID["restarted"].format(ranks=_ranks(sorted(fleet.restarts))), "note")


def _ended(ended: Sequence[Ended]) -> Iterator[Block]:
    how = {Outcome.FAILED: "failed", Outcome.DIED: "ended without closing its trace"}
    for each in ended[:ENDED_SHOWN]:
        step = "" if each.last_step is None else f" in or after step {each.last_step}"
        error = f": {_short(each.error)}" if each.error else ""
        yield Text(f"rank {each.rank} ({each.host}) {how[each.outcome]}{step}{error}", "error")
    if len(ended) > ENDED_SHOWN:
        rest = [each.rank for each in ended[ENDED_SHOWN:]]
        yield Text(f"{_ranks(sorted(rest))} failed or were cut off after that", "error")


def _odd(odd: Sequence[Odd]) -> Iterator[Block]:
    for each in odd[:ODD_SHOWN]:
        yield Text(odd_words(each), "warning")
    if len(odd) > ODD_SHOWN:
        yield Text(f"{format_count(len(odd) - ODD_SHOWN, 'more odd rank')} (--json)", "quiet")


def _sharing(sharing: Sequence[tuple[str, tuple[int, ...]]], strays: Sequence[Stray]) -> Iterator[Block]:
    """Yield the devices that several ranks use: by a stray copy, or as ``set_device`` is missing."""
    for each in strays[:ODD_SHOWN]:
        size, line = format_bytes(each.n_bytes), rank_line_words(each.line)
        yield Text(_SAID["stray"].format(stray=each, size=size, line=line), "warning")
    if sharing and not strays:
        device, ranks = sharing[0]
        more = f", and {format_count(len(sharing) - 1, 'more device')} alike" if len(sharing) > 1 else ""
        yield Text(_SAID["shared"].format(ranks=_ranks(ranks), device=f"{device}{more}"), "warning")


def _groups(groups: Sequence[RankGroup]) -> Iterator[Block]:
    yield Heading(f"{format_count(len(groups), 'group')} of like ranks", level=3)
    rows = [
        (
            _short(ranks_words(group.rows)),
            f"{len(group.rows):,}",
            median_and_most_words(group.allocated_median_bytes, group.allocated_max_bytes),
            median_and_most_words(group.reserved_median_bytes, group.reserved_max_bytes),
            group_words(group),
        )
        for group in groups[:GROUPS_SHOWN]
    ]
    yield Grid(
        ("", "ranks", "peak allocated", "peak reserved", "differs from the first group most at"),
        tuple(rows),
        "lrrrl",
    )
    if len(groups) > GROUPS_SHOWN:
        yield Text(f"{format_count(len(groups) - GROUPS_SHOWN, 'more group')} (--json)", "quiet")


def _notes(summaries: Sequence[RankSummary]) -> Iterator[Block]:
    notes = notes_of_ranks(summaries)
    for text, ranks in notes[:NOTES_SHOWN]:
        yield Text(f"{_ranks(ranks)}: {_short(text)}", "note")
    if len(notes) > NOTES_SHOWN:
        more = format_count(len(notes) - NOTES_SHOWN, "more kind")
        yield Text(f"{more} of notes (vramscope info)", "quiet")


def _ranks(ranks: Sequence[int]) -> str:
    return _short(ranks_words([(rank, 0) for rank in ranks]))


def _short(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 1]}…"


def comparison_as_json(compared: ComparedRun) -> dict[str, Any]:
    """Return the comparison as JSON of schema 1, without findings: the same wherever the ranks are read."""
    fleet = compared.fleet
    return {
        "schema": 1,
        "world_size": fleet.world_size,
        "ranks": fleet.n_ranks,
        "missing": list(fleet.missing),
        "unreadable": [{"rank": rank} for rank, _ in compared.unreadable],
        "running": list(fleet.running),
        "restarts": {str(rank): n for rank, n in sorted(fleet.restarts.items())},
        "ended": [asdict(each) | {"outcome": each.outcome.value} for each in fleet.ended],
        "groups": [_group_as_json(group) for group in fleet.groups],
        "outliers": [_as_json(odd, n_bytes="bytes") for odd in fleet.odd],
        "first_failure": fleet.failure and _as_json(fleet.failure, n_ranks="failed_ranks"),
        "imbalance": fleet.imbalance
        and _as_json(
            fleet.imbalance,
            n_steps="steps",
            allocated_bytes="peak_allocated_bytes",
            n_compared="compared_steps",
        ),
        "clocks": clocks_as_json(fleet.clocks),
        "shared_devices": [{"device": device, "ranks": list(ranks)} for device, ranks in fleet.sharing],
        "stray_copies": [
            {
                "rank": each.rank,
                "device": each.device,
                "own_device": each.own_device,
                "bytes": each.n_bytes,
                "line": rank_line_words(each.line),
            }
            for each in fleet.strays
        ],
        "searched": list(compared.searched),
    }


def _group_as_json(group: RankGroup) -> dict[str, Any]:
    return {
        "ranks": sorted({member.rank for member in group.rows}),
        "peak_allocated_bytes": {"median": group.allocated_median_bytes, "max": group.allocated_max_bytes},
        "peak_reserved_bytes": {"median": group.reserved_median_bytes, "max": group.reserved_max_bytes},
        "typical_rank": group.typical.rank,
        "line_bytes": group.line_bytes,
        **_line_as_json(group.line),
        "embedding_bytes": group.embedding_bytes,
    }


def _as_json(value: Any, **renamed: str) -> dict[str, Any]:
    """Return the fields of an answer by their names, or those that the JSON has for them, and its line."""
    found = {each.name: getattr(value, each.name) for each in fields(value)}
    where = _line_as_json(found.pop("line")) if "line" in found else {}
    return {renamed.get(name, name): each for name, each in found.items()} | where


def _line_as_json(line: LineBytes | None) -> dict[str, Any]:
    if line is None or not line.frames:
        return {"where": None, "calls": None}
    return {"where": line.frames[0]._asdict(), "calls": line.via or None}
