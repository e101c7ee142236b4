"""The table of ``vramscope top``: a row for each rank, and below it what the chosen one is about."""

import os
import select
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

from vramscope.analysis.lines import place_words
from vramscope.model.recording import Outcome
from vramscope.units import format_bytes, format_count, format_rough_duration, format_share, printable

if TYPE_CHECKING:
    from vramscope.fleet.standings import RankStanding

HELP = "↑↓ choose  ←→ sort by  r reverse  q quit"
_STYLES = {"running": "green", "failed": "red", "cut off": "red", "unreadable": "red", "quiet": "yellow"}
_QUIET_S = 90.0
"""Seconds without anything new after which a running rank is called quiet; summaries are a minute old."""
_MOST_ABOUT, _LINES_BESIDE = 6, 3
"""The lines about the chosen row, and those of titles, keys and the gap between."""
_NAMES = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1b[1~": "home",
    "\x1b[4~": "end",
}
_MOST_BYTES = 1024


class _TopColumn(NamedTuple):
    title: str
    cell: "Callable[[RankStanding], str]"
    order: "Callable[[RankStanding], Any]"
    """What rows are sorted by, the greatest first."""
    is_words: bool = False


@dataclass
class TopState:
    """What the user has chosen with keys."""

    chosen: int = 0
    """The row, in the order of the table."""
    sort: int = 0
    is_reversed: bool = False

    def press(self, key: str, n_rows: int, page: int) -> None:
        """Follow a key; others than those of ``HELP`` and the usual ones for pages do nothing."""
        moves = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -page, "page down": page}
        moves |= {"home": -n_rows, "end": n_rows}
        self.chosen = max(min(self.chosen + moves.get(key, 0), n_rows - 1), 0)
        self.sort = (self.sort + {"left": -1, "right": 1}.get(key, 0)) % len(COLUMNS)
        self.is_reversed ^= key == "r"


def _state(row: "RankStanding", now_ns: int = 0) -> str:
    is_quiet = row.outcome is Outcome.RUNNING and now_ns - row.seen_ns > _QUIET_S * 1e9
    return "quiet" if is_quiet else row.outcome.word if row.outcome is not None else "unreadable"


def _size(n_bytes: int | None, *, is_exact: bool = True) -> str:
    return "" if n_bytes is None else f"{'' if is_exact else '≥ '}{format_bytes(n_bytes)}"


def _pace(row: "RankStanding") -> str:
    per_s = row.pace.steps_per_s if row.pace is not None and row.outcome is Outcome.RUNNING else None
    if not per_s:
        return ""
    return f"{per_s:.3g}/s" if per_s >= 1 else f"{1 / per_s:.3g} s"


def _limit(row: "RankStanding") -> str:
    found = row.outlook.forecast
    if found is None:
        return "" if row.outlook.steady_steps is None else "not in sight"
    return f"{found.step:,}"


def _news(row: "RankStanding") -> str:
    return row.finding.kind if row.finding is not None else row.error


COLUMNS = (
    _TopColumn("state", _state, lambda row: (row.outcome is Outcome.RUNNING, row.started_ns), is_words=True),
    _TopColumn("run", lambda row: row.run, lambda row: [-ord(letter) for letter in row.run], is_words=True),
    _TopColumn("rank", lambda row: row.rank, lambda row: (-len(row.rank), row.rank)),
    _TopColumn("level", lambda row: _size(row.level_bytes), lambda row: row.level_bytes or 0),
    _TopColumn(
        "peak", lambda row: _size(row.peak_bytes, is_exact=row.is_exact), lambda row: row.peak_bytes or 0
    ),
    _TopColumn(
        "full",
        lambda row: "" if row.share is None else format_share(row.share, 1, 0),
        lambda row: row.share or 0.0,
    ),
    _TopColumn(
        "step",
        lambda row: "" if row.pace is None else f"{row.pace.step:,}",
        lambda row: -1 if row.pace is None else row.pace.step,
    ),
    _TopColumn("pace", _pace, lambda row: (row.pace.steps_per_s if row.pace is not None else None) or 0.0),
    _TopColumn(
        "limit at",
        _limit,
        lambda row: -row.outlook.forecast.step if row.outlook.forecast is not None else float("-inf"),
    ),
    _TopColumn("finding", _news, lambda row: (row.finding is not None, _news(row)), is_words=True),
)


def ordered(rows: "Sequence[RankStanding]", view: TopState) -> "list[RankStanding]":
    """Return the rows in the order that was chosen; equal ones by run and rank."""
    by_place = sorted(rows, key=lambda row: (row.run, len(row.rank), row.rank))
    return sorted(by_place, key=COLUMNS[view.sort].order, reverse=not view.is_reversed)


def cells(row: "RankStanding", now_ns: int) -> tuple[str, ...]:
    """Return the cells of a row as plain text."""
    return (_state(row, now_ns), *(printable(column.cell(row)) for column in COLUMNS[1:]))


def frame(rows: "Sequence[RankStanding]", view: TopState, size: tuple[int, int], now_ns: int) -> Any:
    """Return what fills a terminal of *size* (width, height): the table, the chosen row, the keys."""
    from rich.console import Group
    from rich.text import Text

    width, height = size
    shown = ordered(rows, view)
    n_shown = visible_rows(height)
    first = min(max(view.chosen - n_shown + 1, 0), max(len(shown) - n_shown, 0))
    table = _table(shown[first : first + n_shown], view, view.chosen - first, now_ns)
    more = f"{first + 1} to {min(first + n_shown, len(shown))} of {format_count(len(shown), 'row')}  "
    keys = Text(f"{more if len(shown) > n_shown else ''}{HELP}"[:width], "dim", no_wrap=True)
    about = about_row(shown[view.chosen], now_ns) if view.chosen < len(shown) else ["no run here yet"]
    below = [part for line in about for part in wrap(printable(line), width)]
    return Group(table, Text(""), *map(Text, below[:_MOST_ABOUT]), keys)


def visible_rows(height: int) -> int:
    """Return the rows of the table that a terminal of that many lines has room for."""
    return max(height - _MOST_ABOUT - _LINES_BESIDE, 1)


def _table(rows: "Sequence[RankStanding]", view: TopState, chosen: int, now_ns: int) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for number, column in enumerate(COLUMNS):
        mark = ("▲" if view.is_reversed else "▼") if number == view.sort else ""
        # Words give way to figures: a figure that is cut off would be another one.
        gives_way = column.title in ("run", "finding")
        table.add_column(
            f"{column.title}{mark}",
            justify="left" if column.is_words else "right",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if gives_way else None,
            min_width=6 if gives_way else None,
        )
    for number, row in enumerate(rows):
        texts = [Text(cell) for cell in cells(row, now_ns)]
        texts[0].stylize(_STYLES.get(texts[0].plain, ""))
        if row.outlook.forecast is not None:
            texts[-2].stylize("yellow")
        table.add_row(*texts, style="reverse" if number == chosen else "")
    return table


def about_row(row: "RankStanding", now_ns: int) -> list[str]:
    """Return what there is to say of one row, a sentence in each line."""
    age_s = max((now_ns - row.seen_ns) / 1e9, 0.0)
    where = f" on {row.host}" if row.host else ""
    seen = f", {format_rough_duration(age_s)} ago" if row.seen_ns and row.outcome is Outcome.RUNNING else ""
    lines = [f"{row.run}, rank {row.rank}{where}{seen}"]
    if row.outlook.text:
        lines.append(row.outlook.text)
    if row.finding is not None:
        found = row.finding
        place = f" ({place_words(found.file, found.line or 0)})" if found.file else ""
        lines.append(f"{found.claim}{place}")
        lines.append(found.advice or "")
    return [*lines, *([row.error] if row.error else [])]


class Keys:
    """``with Keys() as keys:`` around a loop that asks ``keys.read(wait_s)``; after it all is as before."""

    def __init__(self) -> None:
        """Read stdin, where that is a terminal; otherwise there are no keys."""
        self._file = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._before: Any = None

    def __enter__(self) -> "Keys":
        if self._file is not None:
            import termios
            import tty

            self._before = termios.tcgetattr(self._file)
            tty.setcbreak(self._file)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None and self._before is not None:
            import termios

            with suppress(termios.error):  # a terminal that is gone
                termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)

    def read(self, wait_s: float) -> list[str]:
        """Return the keys that were pressed; waits for the first one for *wait_s* at most."""
        files = [] if self._file is None else [self._file]
        if not select.select(files, [], [], wait_s)[0] or self._file is None:
            return []
        pressed = os.read(self._file, _MOST_BYTES)
        # The end of the input is a terminal that was closed.
        return names_of(pressed.decode(errors="replace")) if pressed else ["q"]


def names_of(pressed: str) -> list[str]:
    """Return the names of keys from what a terminal sends for them: ``up``, ``page down``, ``q``."""
    found = []
    rest = pressed.replace("\x1bO", "\x1b[")  # what arrows are in another mode of the terminal
    while rest:
        sequence = next((known for known in _NAMES if rest.startswith(known)), rest[0])
        found.append(_NAMES.get(sequence, sequence))
        rest = rest[len(sequence) :]
    return found
