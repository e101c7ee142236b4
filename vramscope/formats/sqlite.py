"""Databases of SQLite: what Nsight Systems exports (``nsys export --type sqlite``), and MLflow's store.

Nsight Systems records each allocation that a process asks of CUDA, with ``--cuda-memory-usage=true``; torch's
segments are among them, and what it serves from them is not.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

from vramscope.errors import FormatError
from vramscope.formats import Format
from vramscope.formats.log.documents import AllocationEvents, Records
from vramscope.formats.log.series import Figures
from vramscope.model.recording import Run

_MAGIC = b"SQLite format 3\0"
_OF_NSYS = "CUDA_GPU_MEMORY_USAGE_EVENTS"


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
            f"{path}: a database without a table of allocations (of Nsight Systems) and without a metric "
            "about memory (of MLflow); record with nsys profile --cuda-memory-usage=true and export it with "
            "nsys export --type sqlite, or record the training: vramscope run SCRIPT"
        )
    return Run(name=path.name, path=str(path), recordings=found.recordings())


def _take_events(database: sqlite3.Connection, found: Figures) -> None:
    events = AllocationEvents(found)
    rows = database.execute(f"SELECT * FROM {_OF_NSYS} ORDER BY start")  # noqa: S608 (a name of ours)
    names = [column[0] for column in rows.description]
    for row in rows:
        events.take(dict(zip(names, row, strict=True)))


def _take_metrics(database: sqlite3.Connection, found: Figures) -> None:
    """Add what MLflow logged under the name of a memory."""
    records = Records(found)
    for name, value, time_ms, step in database.execute(
        "SELECT key, value, timestamp, step FROM metrics ORDER BY timestamp"
    ):
        records.take({str(name): value, "timestamp": time_ms, "step": step})


FORMAT = Format("sqlite", sniff, read)
