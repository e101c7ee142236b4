"""Which files does a trace directory have, and which columns are in each?

docs/trace-format.md says the same for people; a test keeps the two together. A column or a file more is a new
MINOR (older readers skip it, newer readers fill it with zeros, or with −1 in samples); anything that an older
reader would get wrong is a new MAJOR.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from vramscope.model.counters import UNKNOWN, Counters
from vramscope.model.marks import Labels, Marks
from vramscope.model.past import StretchPeaks, SummarizedSteps
from vramscope.model.snapshot import Blocks, Segments
from vramscope.model.table import Table
from vramscope.model.trace import Trace

WHOLE = (1, 3)
"""Major and minor of a trace in one part."""
IN_PARTS = (2, 2)
"""Of one in several: an older reader would take the first for all."""
FIRST_WITH_CHECKSUMS: Mapping[int, int] = {1: 3, 2: 2}
"""Major → the minor since which files carry checksums and the id of their trace."""

SUFFIX = ".arrows"  # Arrow's name for the streaming format


def _fields(table: type[Table]) -> list[pa.Field]:
    named = hasattr(table, "names")
    return [
        # Names are stored as themselves: an index would need its list to be rewritten.
        pa.field(name, pa.string() if named and name == "name" else arrow_type(dtype), nullable=False)
        for name, dtype in table.DTYPES.items()
    ]


def arrow_type(dtype: str) -> pa.DataType:
    """Of a NumPy dtype such as ``'i8'``."""
    return pa.from_numpy_dtype(np.dtype(dtype))


def numpy_type(kind: pa.DataType) -> np.dtype[Any]:
    """Of integers and booleans, which both libraries call the same; Arrow's own answer needs pandas."""
    return np.dtype(str(kind))


def _list_of(table: type[Table]) -> pa.DataType:
    return pa.list_(pa.field("item", pa.struct(_fields(table)), nullable=False))


TABLES: Mapping[str, type[Table]] = {"events": Trace, "marks": Marks, "labels": Labels, "samples": Counters}
"""Streams that hold one table of the model, one file per device."""

ABSENT: Mapping[str, int] = {"samples": UNKNOWN}
"""What a column of a stream that its file does not have is filled with, where not with zeros."""

ADDED_LATER: Mapping[str, frozenset[str]] = {
    "labels": frozenset({"element_bytes"}),
    "samples": frozenset(list(Counters.DTYPES)[8:]),
}
"""Columns that older files lack; every other column is in every file."""

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
    # A state is one row, so that it is there whole or not at all.
    STATES: pa.schema(
        [
            pa.field("event", pa.int64(), nullable=False),
            pa.field("time_ns", pa.int64(), nullable=False),
            pa.field("reported", pa.bool_(), nullable=False),
            pa.field("segments", _list_of(Segments), nullable=False),
            pa.field("blocks", _list_of(Blocks), nullable=False),
        ]
    ),
    POOLS: pa.schema(
        [
            pa.field("first", pa.uint64(), nullable=False),
            pa.field("second", pa.uint64(), nullable=False),
        ]
    ),
    STACKS: pa.schema(
        [
            pa.field("parent", pa.int32(), nullable=False),
            pa.field("function", pa.string(), nullable=False),
            pa.field("file", pa.string(), nullable=False),
            pa.field("line", pa.int32(), nullable=False),
        ]
    ),
    NOTES: pa.schema(
        [
            pa.field("device", pa.int32(), nullable=False),
            pa.field("code", pa.string(), nullable=False),
            pa.field("text", pa.string(), nullable=False),
            pa.field("value", pa.int64(), nullable=False),
        ]
    ),
}
"""The columns of every stream."""

OF_THE_RANK = frozenset({STACKS, NOTES})
"""Streams with one file per rank; every other stream has one per device."""

IN_EACH_PART = frozenset({*TABLES, STATES})
"""Streams that go on in the next part; every other is one file, whatever is taken."""

IN_SUMMARIES = frozenset({*IN_EACH_PART, PEAKS, STEPS})
"""Streams that tell what is left of parts that were taken."""

EVERY_DEVICE = -1
"""``notes.device`` of what concerns the whole rank."""


def file_name(stream: str, device: int | None = None) -> str:
    """``events-0.arrows``, ``stacks.arrows``."""
    return f"{stream}{SUFFIX}" if device is None else f"{stream}-{device}{SUFFIX}"


def device_of(file: str) -> int | None:
    """The device that a stream's file belongs to; None for files of the rank and for unknown streams."""
    match = re.fullmatch(r"([a-z_]+)-([0-9]{1,5})" + re.escape(SUFFIX), file)
    known = match is not None and match[1] in SCHEMAS and match[1] not in OF_THE_RANK
    return int(match[2]) if match is not None and known else None
