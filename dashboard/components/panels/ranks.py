"""All ranks and devices of a run side by side, two of them in detail, and the groups of like ranks."""

from typing import Any

from dash import dcc, html

from vramscope.analysis.by_rank import RankBytes, by_rank
from vramscope.analysis.findings import ranks_words
from vramscope.analysis.lines import place_words
from vramscope.analysis.rank_comparison import (
    Fleet,
    RankGroup,
    group_words,
    median_and_most_words,
    rank_line_words,
)
from vramscope.analysis.rank_comparison.heat_map import Quantity
from vramscope.analysis.rank_comparison.members import LineDifference, differing_lines
from vramscope.errors import UsageError
from vramscope.model.rank_summary import DeviceSummary, RankSummary
from vramscope.model.recording import Recording
from vramscope.units import format_bytes, format_count

from ...address import Address
from ...data import Data, View
from ...queries.rank_answers import RankAnswers
from ...runs import MOST_OPENED_WHOLE, one_rank
from .. import panel as panels
from ..definitions import term
from .breakdown import share
from .differences import Difference, table

MEANING = (
    "At the moment when the sum over all of them was greatest. The peak of each, the mark on its bar, is at "
    "a different moment, so the peaks do not add up."
)
MOST_GROUPS, MOST_LINES = 12, 12
MOST_LETTERS = 120
_QUANTITIES: tuple[Quantity, ...] = ("allocated", "reserved")


def panel(data: Data, view: View) -> Any:
    """Return the panel; None for one recording, or where the recordings share no clock."""
    recordings = [each for each in view.run.recordings if len(each.trace)]
    if len(recordings) < 2:
        return None
    try:
        found: RankBytes = _asked(data, view, recordings)
    except UsageError:
        return None
    whole, top = found.total_bytes, max(int(found.own_peak_bytes.max()), 1)
    rows = [_row(view, found, i, name, (whole, top)) for i, name in enumerate(found.names)]
    words = f"All {len(found)} together: {format_bytes(whole)}"
    title = panels.titled(words, "at their common peak", MEANING)
    columns = ("Recording", "At that moment", "Share", "Reserved", "Own peak", "")
    shown = panels.table(columns, "lrdrrl", rows, "ranks")
    return panels.panel(title, shown, label="All recordings together")


def _asked(data: Data, view: View, recordings: list[Recording]) -> RankBytes:
    def make(_: Recording) -> RankBytes:
        return by_rank(recordings[0], recordings[1:])

    return data.answers(view).lagging("by_rank", lambda: data.derive(view, "by_rank", make))


def _row(view: View, found: RankBytes, i: int, name: str, scale: tuple[int, int]) -> list[Any]:
    whole, top = scale
    rank, device = int(found.rank[i]), int(found.device[i])
    held, own, reserved = (
        int(found.allocated_bytes[i]),
        int(found.own_peak_bytes[i]),
        int(found.reserved_bytes[i]),
    )
    there = Address("/peak", view.run_id, rank, device)
    late = "" if found.is_within[i] else "not recorded at that moment; the nearer end of its recording"
    label = [html.A(name, href=there.go(path="/overview").url, className="link"),
             html.Span(late, className="dim late")]  # fmt: skip
    return [
        label,
        _to(there.go(at=int(found.instant[i])), held),
        share(held, whole),
        # Less reserved than allocated: the source knows no segments.
        reserved if reserved >= held else "–",
        _to(there.go(at=int(found.own_instant[i])), own),
        panels.peak_bar(held, own, top),
    ]


def _to(address: Address, n_bytes: int) -> Any:
    title = f"{n_bytes:,} bytes: what was live there"
    return html.A(format_bytes(n_bytes), href=address.url, className="plain-link", title=title)


def ranks_in_words(ranks: tuple[int, ...]) -> str:
    """Return the ranks as a person names them, not too long."""
    text = ranks_words([(rank, 0) for rank in ranks])
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 1]}…"


def chosen(found: RankAnswers, address: Address) -> tuple[int, int]:
    """Return the rank to look at and the one to compare it with."""
    known = found.read.summaries
    fleet = found.fleet
    first = [fleet.failure.rank] if fleet.failure is not None else []
    first += [odd.rank for odd in fleet.odd] + [each.rank for each in fleet.ended]
    most = fleet.imbalance
    first += [most.rank] if most is not None and most.allocated_bytes > most.median_bytes else []
    wanted = [*([address.rank] if address.rank is not None else []), *first, *known]
    rank = next(each for each in wanted if each in known)
    named = address.other[1:] if address.other[:1] == "r" else ""
    other = int(named) if named.isdigit() and int(named) in known else typical(fleet, rank)
    return rank, other


def _group(fleet: Fleet, rank: int) -> RankGroup | None:
    return next((group for group in fleet.groups if any(row[0] == rank for row in group.rows)), None)


def typical(fleet: Fleet, rank: int) -> int:
    """Return the rank that stands for the group of *rank*, or another one of it."""
    group = _group(fleet, rank)
    if group is None:
        return rank
    others = [row[0] for row in group.rows if row[0] != rank]
    return group.typical[0] if group.typical[0] != rank or not others else others[0]


def _fullest(summary: RankSummary) -> DeviceSummary:
    return max(summary.devices, key=lambda device: device.peak_bytes("allocated"), default=DeviceSummary())


def pair(found: RankAnswers, address: Address, rank: int, other: int) -> list[Any]:
    """Return a rank at its peak beside another one, line by line."""
    mine, its = found.read.summaries[rank], found.read.summaries[other]
    before, after = _fullest(its), _fullest(mine)
    choice = html.Div(
        [html.Label("Rank", htmlFor="rk-rank"), _number("rk-rank", rank),
         html.Label("beside rank", htmlFor="rk-other"), _number("rk-other", other)],
        className="rank-choice",
    )  # fmt: skip
    head = html.Div([html.H3(f"Rank {rank} at its peak, beside rank {other}"), choice], className="panel-bar")
    rows = [_pair_row(each) for each in differing_lines(before, after)[:MOST_LINES]]
    totals = [
        Difference(f"peak {quantity}", "", before.peak_bytes(quantity), after.peak_bytes(quantity))
        for quantity in _QUANTITIES
        if before.peak_bytes(quantity) or after.peak_bytes(quantity)
    ]
    nothing = "Both hold the same bytes in the same lines."
    return [
        head,
        html.P(_facts(found, mine), className="dim pair-facts"),
        table([*totals, *rows], f"rank {other}", f"rank {rank}", nothing),
        html.P(_links(found, address, rank, other), className="card-links pair-links"),
    ]


def _number(name: str, value: int) -> Any:
    return dcc.Input(
        id=name, type="number", value=value, min=0, step=1, debounce=True, className="rank-number"
    )


def _facts(found: RankAnswers, summary: RankSummary) -> str:
    process = summary.process
    group = _group(found.fleet, process.rank)
    mesh = ", ".join(f"{name} {at}" for name, at in process.mesh.items())
    alike = f"one of {len(group.rows):,} like ranks" if group is not None and len(group.rows) > 1 else ""
    words = [process.host, f"local rank {process.local_rank}" if process.local_rank >= 0 else "", mesh, alike,
             summary.outcome.word]  # fmt: skip
    return " · ".join(word for word in words if word)


def _pair_row(each: LineDifference) -> Difference:
    line = each.line
    if line is None:
        return Difference("all other lines", "", each.before_bytes, each.after_bytes)
    frame = line.frames[0] if line.frames else None
    name = f"{frame.function}: {line.via}" if frame and line.via else frame.function if frame else ""
    detail = place_words(frame.file, frame.line) if frame else ""
    return Difference(name or rank_line_words(line), detail, each.before_bytes, each.after_bytes)


def _links(found: RankAnswers, address: Address, rank: int, other: int) -> list[Any]:
    if found.fleet.n_ranks > MOST_OPENED_WHOLE:
        one = Address("/overview", run=one_rank(address.run, rank))
        both = one.go(path="/compare", other=one_rank(address.run, other))
    else:
        device = _fullest(found.read.summaries[other]).device.index
        one = Address("/overview", run=address.run, rank=rank)
        both = one.go(path="/compare", other=f"{address.run}.r{other}.d{device}")
    links = [html.A(f"Open rank {rank}", href=one.url, className="link")]
    if other != rank:
        links.append(html.A("Compare both step by step", href=both.url, className="link"))
    return links


def groups(fleet: Fleet, address: Address) -> Any:
    """Return the table of the groups of like ranks."""
    peaks = term("allocated", "Peak allocated"), term("reserved", "Peak reserved")
    columns = ("Ranks", "Number", *peaks, "Typical", "Differs from the first group most at")
    n = len(columns) if len(fleet.groups) > 1 else -1
    rows = [_group_row(group, address)[:n] for group in fleet.groups[:MOST_GROUPS]]
    more = len(fleet.groups) - MOST_GROUPS
    after = [html.P(f"{format_count(more, 'more group')}.", className="dim nothing")] if more > 0 else []
    shown = panels.table(columns[:n], "lrrrrl"[:n], rows, "rank-groups")
    return panels.panel("Groups of like ranks", shown, *after)


def _group_row(group: RankGroup, address: Address) -> list[Any]:
    typical = group.typical[0]
    return [
        ranks_in_words(tuple(rank for rank, _ in group.rows)),
        f"{len(group.rows):,}",
        median_and_most_words(group.allocated_median_bytes, group.allocated_max_bytes),
        median_and_most_words(group.reserved_median_bytes, group.reserved_max_bytes),
        html.A(f"rank {typical}", href=address.go(rank=typical).url, className="plain-link"),
        html.Td(html.Bdi(group_words(group)[:300]), className="dim"),
    ]
