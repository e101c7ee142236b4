"""Export of every table as CSV, for spreadsheets and for reading.

A spreadsheet runs a cell that begins with ``=`` as a formula. Texts of a trace are names of files and
functions from any source, so a text that begins like a formula gets an apostrophe before it, which a
spreadsheet does not show. A text that begins with an apostrophe gets one too: removing one apostrophe from
every text that begins with one restores what was recorded. Numbers are unchanged.
"""

from pathlib import Path
from typing import Any

from vramscope.export import Export
from vramscope.model.recording import Run

LIKE_A_FORMULA = "^[=+\\-@\t\r\n'＝＋－＠]"  # noqa: RUF001 — spreadsheets take the wide forms for the same
"""The characters of OWASP's page on CSV injection, and the apostrophe itself."""


def write(run: Run, path: Path) -> list[Path]:
    """Write one file per table and recording below the directory *path*: UTF-8, with a header row."""
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
    """Return the texts of *column* with formulas escaped; CSV has no dictionaries."""
    import pyarrow as pa
    from pyarrow import compute

    texts = column.cast(pa.string())
    quoted = compute.binary_join_element_wise("'", texts, "")
    return compute.if_else(compute.match_substring_regex(texts, LIKE_A_FORMULA), quoted, texts)


EXPORT = Export("csv", "every table as CSV, one file each, below a directory", write)
