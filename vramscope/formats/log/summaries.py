"""The tables of ``torch.cuda.memory_summary()`` in a text.

It contains current and peak totals, but no times and no call stacks. A table becomes two made-up instants:
one with all quantities at their peaks, and one with the current values.
"""

import re
from typing import NamedTuple

from vramscope.formats._totals_trace import TotalsAt
from vramscope.formats.log.lines import PATTERNS, clean
from vramscope.formats.log.oom_messages import size_bytes
from vramscope.model.codes import NoteCode
from vramscope.model.marks import Note
from vramscope.units import format_bytes

TITLE = re.compile(r"PyTorch \w+ memory summary, device ID (\d{1,4})")
_FAILURES = re.compile(r"\w+ OOMs: +(\d{1,12}) +\| +\w+ retries: +(\d{1,12})")
_NEEDED = ("allocated", "active", "reserved")

_TOTALS_ONLY = Note(
    NoteCode.TOTALS_ONLY,
    "a memory summary gives totals, in the unit that it shows: when the peaks were, whether at the same "
    "time, and by whom the memory was allocated is not in it",
)


class SummaryTable(NamedTuple):
    """One table of a memory summary."""

    device: int
    n_ooms: int
    n_retries: int
    now: dict[str, int]
    """Bytes by metric: ``allocated``, ``non-releasable`` …"""
    peak: dict[str, int]

    @property
    def states(self) -> tuple[TotalsAt, ...]:
        """All peaks together, and then the present; once if they are the same."""
        return tuple(dict.fromkeys((_state(self.peak), _state(self.now))))

    @property
    def notes(self) -> tuple[Note, ...]:
        """The values that have no column in a trace."""
        return tuple(_notes(self))


def table(title: str, after: str) -> SummaryTable | None:
    """Return the table that begins in the line *title*; None if there is none, or not all of it."""
    found = TITLE.search(title)
    if found is None:
        return None
    own = _table(int(found[1]), TITLE.split(clean(after))[0])
    return own if all(name in own.now for name in _NEEDED) else None


def is_row(line: str) -> bool:
    """Return whether *line* is one of a table."""
    return PATTERNS["summary_line"].search(line) is not None


def _table(device: int, text: str) -> SummaryTable:
    now: dict[str, int] = {}
    peak: dict[str, int] = {}
    for line in PATTERNS["summary_line"].finditer(text):
        name = _metric(line[1])
        if name and name not in now:  # the first line is the total, "from large pool" follows
            now[name], peak[name] = size_bytes(line[2], line[3]), size_bytes(line[4], line[5])
    failures = _FAILURES.search(text)
    n_ooms, n_retries = (int(failures[1]), int(failures[2])) if failures else (0, 0)
    return SummaryTable(device, n_ooms, n_retries, now, peak)


def _metric(title: str) -> str:
    """Return ``reserved`` for ``GPU reserved memory``; empty for the lines of pools."""
    words = title.lower().removeprefix("gpu ")
    return words.removesuffix(" memory") if words.endswith(" memory") else ""


def _state(of: dict[str, int]) -> TotalsAt:
    allocated = of["allocated"]
    active = max(of["active"], allocated)
    # Only the tables of torch ≥ 2.0 contain requested bytes.
    return TotalsAt(min(of.get("requested", active), active), allocated, active, of["reserved"])


def _notes(table: SummaryTable) -> list[Note]:
    """Return the values that have no column in a trace."""
    kept, most = table.now.get("non-releasable", 0), table.peak.get("non-releasable", 0)
    notes = []
    if "requested" not in table.now:
        notes.append(
            Note(NoteCode.NO_REQUESTED, "requested bytes are not in this table: active bytes stand for them")
        )
    if kept or most:
        text = f"{format_bytes(kept)} free in segments in use (non-releasable), {format_bytes(most)} at most"
        notes.append(Note(NoteCode.NON_RELEASABLE, text, kept))
    if table.n_ooms:
        notes.append(Note(NoteCode.OOMS, f"{table.n_ooms} times out of memory", table.n_ooms))
    if table.n_retries:
        text = f"{table.n_retries} times the cache was released because an allocation did not fit"
        notes.append(Note(NoteCode.RETRIES, text, table.n_retries))
    return [*notes, _TOTALS_ONLY]
