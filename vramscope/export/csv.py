"""Every table as CSV: for spreadsheets and for reading with the eye."""

from pathlib import Path
from typing import Any

from vramscope.export import Export
from vramscope.model.recording import Run


def write(run: Run, path: Path) -> list[Path]:
    """One file per table per recording, below the directory *path*; UTF-8, a header row."""
    from vramscope.export._tables import write_tables

    return write_tables(run, path, ".csv", _write)


def _write(table: Any, file: Path) -> None:
    import pyarrow as pa
    from pyarrow import csv

    words = [i for i, field in enumerate(table.schema) if pa.types.is_dictionary(field.type)]
    for i in words:  # CSV has no dictionaries
        table = table.set_column(i, table.schema[i].name, table.column(i).cast(pa.string()))
    csv.write_csv(table, file)


EXPORT = Export("csv", "every table as CSV, one file each, below a directory", write)
