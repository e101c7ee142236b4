"""Databases of SQLite: what Nsight Systems exports (``nsys export --type sqlite``), and MLflow's store.

Nsight Systems records each allocation that a process asks of CUDA, with ``--cuda-memory-usage=true``; torch's
segments are among them, and what it serves from them is not.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from vramscope.errors import FormatError
from vramscope.formats import Format
from vramscope.formats.log.documents import Records
from vramscope.formats.log.patterns import Amount, Wording
from vramscope.formats.log.places import LogMoment
from vramscope.formats.log.series import Figures
from vramscope.model.recording import Run

_MAGIC = b"SQLite format 3\0"
_OF_NSYS = "CUDA_GPU_MEMORY_USAGE_EVENTS"
_ON_DEVICE = (2, 3, 5)
"""Device memory, arrays and static memory, in Nsight's own numbers for kinds of memory."""
_WORDING = Wording("Nsight Systems (without its CUDA context)", "bytes", "process_used", "B")


def sniff(head: bytes, path: Path) -> bool:  # noqa: ARG001 (the interface of formats)
    """Return whether it is a database."""
    return head.startswith(_MAGIC)


def read(path: Path) -> Run:
    """Read one recording per device."""
    found = Figures()
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        ) as database:
            tables = {
                name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            }
            if _OF_NSYS in tables:
                _take_events(database, found)
            if "metrics" in tables:
                _take_metrics(database, found)
    except sqlite3.Error as error:
        raise FormatError(f"{path}: damaged database ({error}): copy it or export it again") from None
    if not found:
        raise FormatError(
            f"{path}: a database without events of memory; record with nsys profile --cuda-memory-usage=true "
            "and export it with nsys export --type sqlite"
        )
    return Run(name=path.name, path=str(path), recordings=found.recordings())


def _take_events(database: sqlite3.Connection, found: Figures) -> None:
    held: dict[tuple[int, int], dict[int, int]] = {}
    total: dict[tuple[int, int], int] = {}
    for time_ns, pid, device, address, n_bytes, is_free in _events(database):
        blocks = held.setdefault((pid, device), {})
        total[pid, device] = total.get((pid, device), 0) - blocks.pop(address, 0)
        if not is_free:
            blocks[address] = n_bytes
            total[pid, device] += n_bytes
        amount = Amount(_WORDING, total[pid, device], device, "memory of CUDA's allocations")
        # Nsight's global id has the process in its upper bits.
        process = found.at(0, device).process(pid >> 24 & 0xFFFFFF, "")
        process.add([amount], LogMoment(time_ns))


def _events(database: sqlite3.Connection) -> Iterator[tuple[int, int, int, int, int, int]]:
    columns = {row[1] for row in database.execute(f"PRAGMA table_info({_OF_NSYS})")}
    kinds = ", ".join(map(str, _ON_DEVICE))
    where = f" WHERE memKind IN ({kinds})" if "memKind" in columns else ""
    pid = "globalPid" if "globalPid" in columns else "0"
    address = "address" if "address" in columns else "0"
    chosen = f"start, {pid}, deviceId, {address}, bytes, memoryOperationType"
    query = f"SELECT {chosen} FROM {_OF_NSYS}{where} ORDER BY start"  # noqa: S608 (names of ours)
    for row in database.execute(query):
        numbers = tuple(int(value or 0) for value in row)
        if numbers[4] >= 0 and 0 <= numbers[2] < 1024:
            yield numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]


def _take_metrics(database: sqlite3.Connection, found: Figures) -> None:
    """Add what MLflow logged under the name of a memory."""
    records = Records(found)
    for name, value, time_ms, step in database.execute(
        "SELECT key, value, timestamp, step FROM metrics ORDER BY timestamp"
    ):
        records.take({str(name): value, "timestamp": time_ms, "step": step})


FORMAT = Format("sqlite", sniff, read)
