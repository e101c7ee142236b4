"""The table of ``torch.cuda.memory_summary()``: alone, or several of them in a log.

It contains current and peak totals, but no times and no call stacks. A table becomes two made-up instants:
one with all quantities at their peaks, and one with the current values.
"""

import re
from pathlib import Path
from typing import NamedTuple

from vramscope.errors import FormatError
from vramscope.formats import Format
from vramscope.formats._file import beginning, contents
from vramscope.formats._text import as_utf8, is_text, run_of_text, tail
from vramscope.formats._totals_trace import NO_LAYOUT, TotalsAt, TotalsTrace
from vramscope.model.codes import NoteCode
from vramscope.model.device import Device
from vramscope.model.marks import Note
from vramscope.model.recording import Recording, Run
from vramscope.units import format_bytes, parse_bytes

_TITLE = re.compile(rb"PyTorch \w+ memory summary, device ID (\d{1,4})")
_FAILURES = re.compile(rb"\w+ OOMs: +(\d{1,12}) +\| +\w+ retries: +(\d{1,12})")
_LINE = re.compile(
    rb"\| ([A-Za-z][\w \-]{3,20}?) +\| +(\d{1,19}) ((?:[KMGTP]i?)?B) *\| +(\d{1,19}) ((?:[KMGTP]i?)?B) *\|"
)
_NEEDED = ("allocated", "active", "reserved")
_MOST = 1 << 56

_TOTALS_ONLY = Note(
    NoteCode.TOTALS_ONLY,
    "a memory summary gives totals, in the unit that it shows: when the peaks were, whether at the same "
    "time, and by whom the memory was allocated is not in it",
)


class _SummaryTable(NamedTuple):
    """One table of a memory summary."""

    device: int
    n_ooms: int
    n_retries: int
    now: dict[str, int]
    """Bytes by metric: ``allocated``, ``non-releasable`` …"""
    peak: dict[str, int]


def sniff(head: bytes, path: Path) -> bool:
    """Return whether it is a text with the title of a summary at its beginning or end."""
    start = as_utf8(beginning(head))
    return is_text(start) and any(_TITLE.search(part) for part in (start, tail(head, path)))


def read(path: Path) -> Run:
    """Read one recording per device."""
    tables = _tables(as_utf8(contents(path)))
    if not tables:
        raise FormatError(
            f"{path}: no complete memory summary in it: print torch.cuda.memory_summary() again"
        )
    devices = sorted({table.device for table in tables})
    try:
        recordings = [_recording(index, [t for t in tables if t.device == index]) for index in devices]
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None
    return run_of_text(path, recordings)


def _tables(data: bytes) -> list[_SummaryTable]:
    """Return every table that has the lines needed."""
    titles = list(_TITLE.finditer(data))
    ends = [*(title.start() for title in titles[1:]), len(data)]
    found = [_table(int(title[1]), data[title.end() : end]) for title, end in zip(titles, ends, strict=False)]
    return [table for table in found if all(name in table.now for name in _NEEDED)]


def _table(device: int, text: bytes) -> _SummaryTable:
    now: dict[str, int] = {}
    peak: dict[str, int] = {}
    for line in _LINE.finditer(text):
        name = _metric(line[1].decode())
        if name and name not in now:  # the first line is the total, "from large pool" follows
            now[name], peak[name] = _bytes(line[2], line[3]), _bytes(line[4], line[5])
    failures = _FAILURES.search(text)
    n_ooms, n_retries = (int(failures[1]), int(failures[2])) if failures else (0, 0)
    return _SummaryTable(device, n_ooms, n_retries, now, peak)


def _metric(title: str) -> str:
    """Return ``reserved`` for ``GPU reserved memory``; empty for the lines of pools."""
    words = title.lower().removeprefix("gpu ")
    return words.removesuffix(" memory") if words.endswith(" memory") else ""


def _bytes(number: bytes, unit: bytes) -> int:
    return min(parse_bytes(f"{number.decode()} {unit.decode()}"), _MOST)


def _recording(index: int, tables: list[_SummaryTable]) -> Recording:
    builder = TotalsTrace()
    for table in tables:
        for state in dict.fromkeys((_state(table.peak), _state(table.now))):
            builder.set_totals(state)
    return Recording(
        source="snapshot",
        device=Device(index),
        trace=builder.trace(),
        notes=(*_notes(tables[-1]), _TOTALS_ONLY, NO_LAYOUT),
    )


def _state(of: dict[str, int]) -> TotalsAt:
    allocated = of["allocated"]
    active = max(of["active"], allocated)
    # Only the tables of torch ≥ 2.0 contain requested bytes.
    return TotalsAt(min(of.get("requested", active), active), allocated, active, of["reserved"])


def _notes(table: _SummaryTable) -> list[Note]:
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
    return notes


FORMAT = Format("memory_summary", sniff, read)
