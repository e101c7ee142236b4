"""Every table as CSV: for spreadsheets and for reading with the eye.

A spreadsheet takes a cell that begins with ``=`` for a formula and runs it. Texts of a trace are the names of
other people's files and functions, so a text that begins like a formula gets an apostrophe before it, which
a spreadsheet does not show. A text that begins with an apostrophe gets one too: taking one away from
every text that has one gives back what was recorded. Numbers stay as they are.
"""

from pathlib import Path
from typing import Any

from vramscope.export import Export
from vramscope.model.recording import Run

_LIKE_A_FORMULA = "^[=+\\-@\t\r\n'＝＋－＠]"  # noqa: RUF001 — spreadsheets take the wide forms for the same
"""The list of OWASP's page on CSV injection, and the apostrophe itself."""


def write(run: Run, path: Path) -> list[Path]:
    """One file per table per recording, below the directory *path*; UTF-8, a header row."""
    from vramscope.export._tables import write_tables

    return write_tables(run, path, ".csv", _write)


def _write(table: Any, file: Path) -> None:
    import pyarrow as pa
    from pyarrow import csv

    for i, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type) or pa.types.is_string(field.type):
            table = table.set_column(i, field.name, _texts(table.column(i)))
    csv.write_csv(table, file)


def _texts(column: Any) -> Any:
    """Texts of *column*, none of which is a formula; CSV has no dictionaries."""
    import pyarrow as pa
    from pyarrow import compute

    texts = column.cast(pa.string())
    quoted = compute.binary_join_element_wise("'", texts, "")
    return compute.if_else(compute.match_substring_regex(texts, _LIKE_A_FORMULA), quoted, texts)


EXPORT = Export("csv", "every table as CSV, one file each, below a directory", write)
