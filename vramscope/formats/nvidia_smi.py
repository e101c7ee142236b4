"""Logs of nvidia-smi: ``--query-gpu=… --format=csv`` or ``--query-compute-apps=…``, also with ``-l``.

They contain the driver's view only: the used memory of the device, by all processes together. Real logs may
be UTF-16 from PowerShell, lack a header, have units in the cells or in the header, have rows of several
devices in turn, and be cut at the end.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from vramscope.errors import FormatError
from vramscope.formats import Format
from vramscope.formats._file import beginning, contents, file_run, naming
from vramscope.formats.log.times import LOCAL_TIME, time_ns
from vramscope.model.codes import NoteCode
from vramscope.model.counters import Counters
from vramscope.model.device import Device, Process
from vramscope.model.marks import Note
from vramscope.model.recording import Recording, Run
from vramscope.package_data import words
from vramscope.units import format_bytes, parse_bytes

_WORDS = re.compile(r"memory\.(used|total|free)|used_(gpu_)?memory|utilization\.gpu")
_CELL = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*(%|(?:[KMGT]i?)?B)?\s*")
_SECONDS = re.compile(r"\d{9,11}(\.\d+)?")
_STAMP = re.compile(r"\d{4}[/-]\d\d[/-]\d\d[ T]\d\d:\d\d:\d\d")
_IDENTITY = ("index", "gpu", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id", "serial", "name", "gpu_name")
_ALIASES = words(__file__, "columns.tsv", "alias")
_UNKNOWN = -1
_LARGEST = 1 << 50
_MOST_TOLD = 20
_MOST_COLUMNS = 1000
"""The most columns of a log; nvidia-smi has some 130."""
_ZONE = re.compile(r"(Z|[+-]\d\d:?\d\d)$")

_DRIVER_ONLY = Note(
    NoteCode.DRIVER_ONLY,
    "nvidia-smi counts whole devices at moments: what torch allocated or cached, by whom, and peaks between "
    "two samples are not in this file",
)
_WITHOUT_RESERVE = Note(
    NoteCode.WITHOUT_RESERVE,
    "the device's total is not in this file: used and free together are shown, without the driver's reserve",
)


class _Column(NamedTuple):
    """The meaning of a column; the unit is empty if the cells contain it."""

    name: str
    unit: str


class _Log(NamedTuple):
    """A log as columns; 600,000 lines contain few different cells, so each is parsed once."""

    columns: Sequence[_Column]
    cells: Mapping[str, Sequence[str]]
    """The cells of each column, by its name."""
    times_ns: Sequence[int]
    """The time of each line."""
    notes: list[Note]

    def cell(self, name: str, row: int) -> str:
        return self.cells[name][row] if name in self.cells else ""

    def column(self, name: str, rows: Sequence[int], meaning: Callable[[str], int]) -> list[int]:
        """Return the parsed cells of *rows*; a missing column counts as empty cells."""
        if name not in self.cells:
            return [meaning("")] * len(rows)
        cells = self.cells[name]
        known = {cell: meaning(cell) for cell in {cells[row] for row in rows}}
        return [known[cells[row]] for row in rows]

    def sizes(self, name: str, rows: Sequence[int]) -> list[int]:
        unit = next((column.unit for column in self.columns if column.name == name), "")
        return self.column(name, rows, lambda cell: _bytes(cell, unit))


def sniff(head: bytes, path: Path) -> bool:  # noqa: ARG001 (the interface of formats)
    """Return whether the first line has nvidia-smi's column names, or a time and cells with its units."""
    line = _decoded(beginning(head)).lstrip().split("\n", 1)[0].lower()
    if line.count(",") < 1 or line.startswith(("{", "[")):
        return False
    return _WORDS.search(line) is not None or (_STAMP.match(line) is not None and " mib" in line)


def read(path: Path) -> Run:
    """Read one recording per device, with counters only."""
    data = contents(path)
    with naming(path):
        log = _log(_decoded(data))
    if not log.times_ns:
        raise FormatError(f"{path}: nvidia-smi wrote no sample that can be read into this file")
    if not log.cells.keys() & {"used", "free", "process"}:
        raise FormatError(
            f"{path}: what nvidia-smi wrote has no column of memory; ask for it: nvidia-smi "
            "--query-gpu=timestamp,index,memory.used,memory.total --format=csv -l 1 > gpu.csv"
        )
    groups = _by_device(log)
    recordings = tuple(_recording(index, rows, log) for index, rows in sorted(groups.items()))
    name = path.name.removesuffix(".gz").removesuffix(".csv")
    return file_run(path, name, recordings, log.notes, log.times_ns)


def _decoded(data: bytes) -> str:
    """Return the text, decoded as its first bytes indicate."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    if data[1:2] == b"\0":
        return data.decode("utf-16-le", "replace")
    return data.decode("utf-8-sig", "replace")


def _log(text: str) -> _Log:
    lines = [line for line in text.splitlines() if line.strip()]
    n_columns = lines[0].count(",") + 1 if lines else 0
    if n_columns > _MOST_COLUMNS:
        raise FormatError(f"its first line has {n_columns:,} columns: this is no log of nvidia-smi")
    named = bool(lines) and _WORDS.search(lines[0].lower()) is not None
    head = _cells(lines[0]) if named else []
    table = [_cells(line) for line in lines[named:]]
    columns = [_column(cell) for cell in head] if named else _guessed(table)
    whole = [cells for cells in table if len(cells) == len(columns) and cells != head]
    notes = list(_left_out(table, len(columns), head, is_cut=not text.endswith("\n")))
    if whole and not text.endswith("\n") and columns[-1].name in _ALIASES.values():
        # The number in the last cell may be cut.
        whole.pop()
        notes.append(Note(NoteCode.TRUNCATED, "the last line is cut: left out", 1))
    cells = dict(zip([column.name for column in columns], zip(*whole, strict=True), strict=False))
    stamps = cells.get("timestamp", ("",) * len(whole))
    known = {
        stamp: int(float(stamp) * 1e9) if _SECONDS.fullmatch(stamp) else time_ns(stamp)
        for stamp in set(stamps)
    }
    if not named:
        notes.append(_headerless(columns))
    if any(moment and not _ZONE.search(stamp) for stamp, moment in known.items()):
        notes.append(LOCAL_TIME)
    return _Log(columns, cells, [known[stamp] for stamp in stamps], notes)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split(",")]


def _column(title: str) -> _Column:
    """Parse a title such as ``memory.used [MiB]``."""
    name, _, unit = title.lower().partition("[")
    return _Column(_ALIASES.get(name.strip(), name.strip()), unit.rstrip("] "))


def _left_out(table: list[list[str]], width: int, head: list[str], *, is_cut: bool) -> Iterator[Note]:
    wrong = sum(len(cells) != width and cells != head for cells in table)
    if is_cut and table and len(table[-1]) < width:
        wrong -= 1
        yield Note(NoteCode.TRUNCATED, "the last line is cut: left out", 1)
    if wrong:
        yield Note(
            NoteCode.SKIPPED, f"{wrong} lines have another number of cells than the first: left out", wrong
        )


def _guessed(table: list[list[str]]) -> list[_Column]:
    """Return the columns of a log without a header, guessed from their cells.

    The memory columns that change are used and free; the one that never changes is the total.
    """
    width = len(table[0]) if table else 0
    first = [_first_of(cell) for cell in (table[0] if table else [])]
    memory = [at for at, kind in enumerate(first) if kind == "memory"]
    names = [f"{kind} {at}" for at, kind in enumerate(first)]
    for kind, name in (("time", "timestamp"), ("share", "busy")):
        if kind in first:
            names[first.index(kind)] = name
    values = [[_bytes(row[at], "") for at in memory] for row in table if len(row) == width]
    for at, name in zip(memory, _memory_names(values), strict=False):
        names[at] = name
    return [_Column(name, "") for name in names]


def _first_of(cell: str) -> str:
    if _STAMP.match(cell):
        return "time"
    found = _CELL.fullmatch(cell)
    unit = found[2] if found else None
    return "share" if unit == "%" else "memory" if unit else "other"


def _memory_names(values: list[list[int]]) -> tuple[str, ...]:
    """Return the names of the memory columns; used comes first, as in most queries."""
    if not values or len(values[0]) < 2:
        return ("used",)
    pairs = [row[:2] for row in values if min(row) >= 0]
    changing = [len({row[at] for row in pairs}) > 1 for at in (0, 1)]
    if all(changing):
        return ("used", "free")
    larger = int(bool(pairs) and pairs[0][1] >= pairs[0][0])
    return ("used", "total") if larger else ("total", "used")


def _headerless(columns: Sequence[_Column]) -> Note:
    words = {"busy": "utilization", "used": "memory used", "free": "memory free", "total": "memory in total"}
    known = ", ".join(words[column.name] for column in columns if column.name in words)
    return Note(NoteCode.NO_HEADER, f"no column names in this file; by its cells it has: {known}")


def _by_device(log: _Log) -> dict[int, list[int]]:
    """Return the rows of each device by its index, which is the log's own if it has such a column."""
    offered = [column.name for column in log.columns if column.name in _IDENTITY]
    keys = list(zip(*(log.cells[name] for name in offered), strict=True)) or [()] * len(log.times_ns)
    distinct = list(dict.fromkeys(keys))
    index = {key: at for at, key in enumerate(distinct)}
    for at, name in enumerate(offered):
        numbers = {key[at] for key in distinct}
        are_indices = all(re.fullmatch(r"\d{1,4}", each, re.ASCII) for each in numbers)
        if name in ("index", "gpu") and len(numbers) == len(distinct) and are_indices:
            index = {key: int(key[at]) for key in distinct}
            break
    groups: dict[int, list[int]] = {}
    for row, key in enumerate(keys):
        groups.setdefault(index[key], []).append(row)
    return groups


def _recording(index: int, rows: list[int], log: _Log) -> Recording:
    units = {column.name for column in log.columns}
    process, rows, notes = _largest(rows, log)
    used, total, free, of_process = (log.sizes(name, rows) for name in ("used", "total", "free", "process"))
    if "free" in units and "total" not in units:
        total = [a + b if min(a, b) >= 0 else _UNKNOWN for a, b in zip(used, free, strict=True)]
        notes.append(_WITHOUT_RESERVE)
    elif "free" in units and "used" not in units:
        used = [a - b if min(a, b) >= 0 else _UNKNOWN for a, b in zip(total, free, strict=True)]
    unknown = [_UNKNOWN] * len(rows)
    return Recording(
        source="nvidia-smi",
        process=process,
        device=_device(index, rows[0], log, max(*total, 0)),
        counters=Counters.of(
            time_ns=[log.times_ns[row] for row in rows],
            event=unknown,
            allocated_bytes=unknown,
            reserved_bytes=unknown,
            device_used_bytes=used,
            device_total_bytes=total,
            process_used_bytes=of_process,
            utilization_percent=log.column("busy", rows, _percent),
        ),
        notes=(*notes, _DRIVER_ONLY),
    )


def _device(index: int, row: int, log: _Log, total_bytes: int) -> Device:
    name, uuid = (log.cell(key, row) or log.cell(f"gpu_{key}", row) for key in ("name", "uuid"))
    return Device(index, "cuda", name, total_bytes, uuid)


def _largest(rows: list[int], log: _Log) -> tuple[Process, list[int], list[Note]]:
    if "pid" not in log.cells:
        return Process(), rows, []
    by_pid: dict[str, list[int]] = {}
    for row in rows:
        by_pid.setdefault(log.cells["pid"][row], []).append(row)
    most = {pid: max(log.sizes("process", own)) for pid, own in by_pid.items()}
    first, *others = sorted(most, key=lambda pid: -most[pid])
    notes = [_other(pid, log.cell("process_name", by_pid[pid][0]), most[pid]) for pid in others[:_MOST_TOLD]]
    if len(others) > _MOST_TOLD:
        rest = len(others) - _MOST_TOLD
        notes.append(Note(NoteCode.OTHER_PROCESSES, f"{rest} more processes used less", rest))
    number = int(first) if re.fullmatch(r"\d{1,10}", first, re.ASCII) else 0
    return Process(pid=number, command=log.cell("process_name", by_pid[first][0])), by_pid[first], notes


def _other(pid: str, name: str, n_bytes: int) -> Note:
    used = f"used up to {format_bytes(n_bytes)}" if n_bytes >= 0 else "used an unknown amount"
    text = f"process {pid[:20]} ({name[:100]}) {used} of the same device"
    return Note(NoteCode.OTHER_PROCESS, text, max(n_bytes, 0))


def _bytes(cell: str, unit: str) -> int:
    """Return the bytes of ``1129 MiB``, or of ``1129`` with the header's unit; −1 for ``[N/A]``."""
    found = _CELL.fullmatch(cell)
    if found is None or found[2] == "%" or cell.startswith("-"):
        return _UNKNOWN
    try:
        size = parse_bytes(found[1] + (found[2] or unit or "MiB"))
    except ValueError:
        return _UNKNOWN
    return size if size <= _LARGEST else _UNKNOWN


def _percent(cell: str) -> int:
    found = _CELL.fullmatch(cell)
    return round(float(found[1])) if found and 0 <= float(found[1]) <= 100 else _UNKNOWN


FORMAT = Format("nvidia_smi", sniff, read)
