"""The files of a trace directory and the columns of each.

docs/trace-format.md documents the same, and a test compares the two. A new column or file is a new MINOR
version (older readers skip it, newer readers fill it with zeros, or with −1 in samples). A change that an
older reader would misread is a new MAJOR version.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from vramscope.model.counters import UNKNOWN, Counters
from vramscope.model.holders import Holders
from vramscope.model.marks import Labels, Marks
from vramscope.model.past import StretchPeaks, SummarizedSteps
from vramscope.model.snapshot import Blocks, Segments
from vramscope.model.table import Table
from vramscope.model.trace import Trace

WHOLE = (1, 7)
"""The major and minor version of a trace in one part."""
IN_PARTS = (2, 6)
"""The version of a trace in several parts: an older reader would take the first part for the whole."""
FIRST_WITH_CHECKSUMS: Mapping[int, int] = {1: 3, 2: 2}
"""Maps a major to the first minor version whose files carry checksums and the id of their trace."""

SUFFIX = ".arrows"  # Arrow's name for the streaming format


def _fields(table: type[Table]) -> list[pa.Field]:
    named = hasattr(table, "names")
    return [
        # Names are stored as strings: an index would need its list to be rewritten.
        pa.field(
            name, pa.string() if named and name in table.TEXT_COLUMNS else arrow_type(dtype), nullable=False
        )
        for name, dtype in table.DTYPES.items()
    ]


def arrow_type(dtype: str) -> pa.DataType:
    """Return the Arrow type of a NumPy dtype such as ``'i8'``."""
    return pa.from_numpy_dtype(np.dtype(dtype))


def numpy_type(kind: pa.DataType) -> np.dtype[Any]:
    """Return the NumPy dtype of an Arrow integer or boolean, which have the same names in both libraries.

    Arrow's own conversion needs pandas.
    """
    return np.dtype(str(kind))


def _list_of(table: type[Table]) -> pa.DataType:
    return pa.list_(pa.field("item", pa.struct(_fields(table)), nullable=False))


def _required(**kinds: pa.DataType) -> pa.Schema:
    """Return a schema whose columns have a value in every row."""
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in kinds.items()])


TABLES: Mapping[str, type[Table]] = {
    "events": Trace,
    "marks": Marks,
    "labels": Labels,
    "holders": Holders,
    "samples": Counters,
}
"""Streams that hold one table of the model, one file per device."""

ABSENT: Mapping[str, int] = {"samples": UNKNOWN}
"""The value of a stream's missing columns if it is not zero."""

ADDED_LATER: Mapping[str, frozenset[str]] = {
    "labels": frozenset({"element_bytes"}),
    "samples": frozenset(list(Counters.DTYPES)[8:]),
}
"""The columns that older files lack; every other column is in every file."""

PEAKS = "peaks"
STEPS = "steps"
STATES = "states"
POOLS = "pools"
STACKS = "stacks"
NOTES = "notes"

SCHEMAS: Mapping[str, pa.Schema] = {
    **{stream: pa.schema(_fields(table)) for stream, table in TABLES.items()},
    PEAKS: pa.schema(_fields(StretchPeaks)),
    STEPS: pa.schema(_fields(SummarizedSteps)),
    # A state is one row, so that it is stored completely or not at all.
    STATES: _required(
        event=pa.int64(),
        time_ns=pa.int64(),
        reported=pa.bool_(),
        segments=_list_of(Segments),
        blocks=_list_of(Blocks),
    ),
    POOLS: _required(first=pa.uint64(), second=pa.uint64()),
    STACKS: _required(parent=pa.int32(), function=pa.string(), file=pa.string(), line=pa.int32()),
    NOTES: _required(device=pa.int32(), code=pa.string(), text=pa.string(), value=pa.int64()),
}
"""The columns of every stream."""

OF_THE_RANK = frozenset({STACKS, NOTES})
"""Streams with one file per rank; every other stream has one per device."""

IN_EACH_PART = frozenset({*TABLES, STATES})
"""Streams that continue in the next part; every other stream is one file and is never deleted."""

IN_SUMMARIES = frozenset({*IN_EACH_PART, PEAKS, STEPS})
"""Streams of the summary of deleted parts."""

EVERY_DEVICE = -1
"""The value of ``notes.device`` for notes on the whole rank."""


def file_name(stream: str, device: int | None = None) -> str:
    """Return the name of a stream's file, such as ``events-0.arrows`` or ``stacks.arrows``."""
    return f"{stream}{SUFFIX}" if device is None else f"{stream}-{device}{SUFFIX}"


def device_of(file: str) -> int | None:
    """Return the device of a stream's file; None for files of the rank and for unknown streams."""
    match = re.fullmatch(r"([a-z_]+)-([0-9]{1,5})" + re.escape(SUFFIX), file)
    known = match is not None and match[1] in SCHEMAS and match[1] not in OF_THE_RANK
    return int(match[2]) if match is not None and known else None
