"""Timelines of ``torch.profiler``: what ``export_memory_timeline("….raw.json.gz")`` writes.

A row is time, action, bytes and the profiler's category, without an address. So it is unknown which of
several blocks with the same size and category an event is about; their sums do not depend on that.
"""

import re
from operator import itemgetter
from pathlib import Path
from typing import Any

from vramscope.errors import FormatError
from vramscope.formats import Format
from vramscope.formats._file import beginning, file_run, naming, parsed
from vramscope.formats._totals_trace import NO_LAYOUT, Pairs, TotalsTrace
from vramscope.model.codes import NoteCode
from vramscope.model.device import Device
from vramscope.model.marks import Category, Labels, Note
from vramscope.model.recording import Recording, Run
from vramscope.package_data import rows as table_rows
from vramscope.units import format_bytes

_ROW = re.compile(rb"\s*\[\s*\[\s*-?\d{1,19}\s*,\s*[1-4]\s*,\s*-?\d{1,19}\s*,\s*[0-7]\s*\]")
_PREEXISTING, _CREATE, _INCREMENT_VERSION, _DESTROY = 1, 2, 3, 4

_CATEGORIES = tuple(
    (Category[name], label) for name, label in table_rows(__file__, "columns.tsv", "category")
)
"""The profiler's categories by its index (torch/profiler/_memory_profiler.py)."""

_NAMES = ("", "autograd detail")
_MOST = 1 << 62

_NOTES = (
    Note(
        NoteCode.NO_ADDRESSES,
        "a memory timeline of the profiler has no addresses, no call stacks, no device (it may be the host) "
        "and no reserved memory: addresses are made up, and of blocks alike in size and category the last to "
        "come goes first",
    ),
    NO_LAYOUT,
)

_Known = tuple[int, int]
"""The size in bytes and the profiler's category."""


def sniff(head: bytes, path: Path) -> bool:  # noqa: ARG001 (the interface of formats)
    """Return whether it is a JSON list that begins with such a row."""
    return _ROW.match(beginning(head)) is not None


def read(path: Path) -> Run:
    """Read one recording: a timeline is of one device, which it does not name."""
    rows = parsed(path)
    with naming(path):
        recording = _recording(_checked(rows))
    return file_run(path, re.sub(r"(\.raw)?(\.json)?(\.gz)?$", "", path.name), (recording,))


def _checked(rows: Any) -> list[list[int]]:
    for at, row in enumerate(rows):
        if type(row) is not list or len(row) != 4 or any(type(value) is not int for value in row):
            raise FormatError(f"row {at:,} is not [time, action, bytes, category]: the file is damaged")
        time_ns, action, n_bytes, category = row
        if not (-1 <= time_ns < _MOST and 1 <= action <= 4 and abs(n_bytes) < _MOST and 0 <= category <= 7):
            raise FormatError(f"row {at:,} has a number out of range: the file is damaged")
    return sorted(rows, key=itemgetter(0))


def _recording(rows: list[list[int]]) -> Recording:
    book = _Book()
    for row in rows:
        book.enter(*row)
    notes = list(_NOTES)
    n_bytes = book.pairs.predating_bytes
    if n_bytes:
        text = f"{format_bytes(n_bytes)} were already allocated when profiling began"
        notes.insert(0, Note(NoteCode.STARTS_LATE, text, n_bytes))
    return Recording(
        source="snapshot",
        device=Device(kind="unknown"),
        trace=book.builder.trace(),
        initial=book.builder.initial(),
        labels=book.labels(),
        notes=tuple(notes),
    )


class _Book:
    def __init__(self) -> None:
        self.builder = TotalsTrace()
        self.pairs = Pairs(self.builder)
        self._labels: list[tuple[int, int, int]] = []
        self._leaving: _Known | None = None
        """The size and old category of a tensor's new version, from the row before."""

    def enter(self, time_ns: int, action: int, n_bytes: int, category: int) -> None:
        size = abs(n_bytes)
        if not size:
            return
        if action == _PREEXISTING:
            self._label(self.pairs.expect((size, category), size), category)
        elif action == _CREATE:
            self._label(self.pairs.begin((size, category), size, time_ns), category)
        elif action == _DESTROY:
            self.pairs.end((size, category), size, time_ns)
        elif n_bytes < 0:
            self._leaving = (size, category)
        elif self._leaving is not None:
            self._change(self._leaving, (size, category))
            self._leaving = None

    def _change(self, before: _Known, after: _Known) -> None:
        if before != after and before[0] == after[0]:
            self._label(self.pairs.rename(before, after, after[0]), after[1])

    def _label(self, address: int, category: int) -> None:
        self._labels.append((len(self.builder), address, category))

    def labels(self) -> Labels:
        """Return the categories of each block, one label per change."""
        known = [row for row in self._labels if _CATEGORIES[row[2]][0] != Category.UNKNOWN]
        return Labels.of(
            event=[event for event, _, _ in known],
            address=[address for _, address, _ in known],
            category=[_CATEGORIES[category][0] for _, _, category in known],
            name=[_NAMES.index(_CATEGORIES[category][1]) for _, _, category in known],
            names=_NAMES,
        )


FORMAT = Format("memory_timeline", sniff, read)
