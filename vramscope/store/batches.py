"""The tables of the model as Arrow's record batches."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vramscope.model.snapshot import Snapshot
from vramscope.model.table import Table
from vramscope.store.appendfile import AppendFile
from vramscope.store.columns import number_array, string_array
from vramscope.store.schema import SCHEMAS, STATES


def batch(stream: str, columns: Sequence[pa.Array]) -> pa.RecordBatch:
    """Of one stream, its columns in order."""
    return pa.RecordBatch.from_arrays(list(columns), schema=SCHEMAS[stream])


def compressed(rows: pa.RecordBatch) -> memoryview:
    """The message of one batch, its buffers packed. For what is written rarely and kept long."""
    codec = "zstd" if pa.Codec.is_available("zstd") else None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as stream:
        stream.write_batch(rows)
    # Between the schema and the mark of the end, which a file that goes on has not.
    return memoryview(sink.getvalue())[len(rows.schema.serialize()) : -8]


def write_compressed(path: Path, rows: Sequence[pa.RecordBatch]) -> None:
    """Append *rows* as one batch, and wait for the disk. Raises OSError."""
    file = AppendFile(path)
    try:
        if rows and not file.size:
            file.append(rows[0].schema.serialize())
        for whole in pa.Table.from_batches(rows).combine_chunks().to_batches() if rows else []:
            file.append(compressed(whole))
    finally:
        file.close(durable=True)


def row_of_state(state: Snapshot, *, reported: bool) -> pa.RecordBatch:
    """A whole state is one row."""
    head = [array([state.event], "i8"), array([state.time_ns], "i8"), array([reported], "?")]
    return batch(STATES, [*head, _list_of_one(state.segments), _list_of_one(state.blocks)])


def array(values: Sequence[int], dtype: str) -> pa.Array:
    """A column of numbers."""
    return number_array(np.array(values, dtype))


def arrays(table: Table) -> list[pa.Array]:
    """The columns of a table; names as strings."""
    names = getattr(table, "names", ())
    return [
        _named(column, names) if names and name == "name" else number_array(column)
        for name, column in table.columns()
    ]


def _named(column: NDArray[Any], names: Sequence[str]) -> pa.Array:
    """The strings that *column* stands for; a call costs its rows, not all names so far."""
    used, row_of = np.unique(column, return_inverse=True)
    return string_array(names[index] for index in used).take(number_array(row_of))


def _list_of_one(table: Table) -> pa.Array:
    """All rows of *table* as the value of one row."""
    kind = SCHEMAS[STATES].field(type(table).__name__.lower()).type
    rows = pa.StructArray.from_arrays(arrays(table), fields=list(kind.value_type))
    return pa.ListArray.from_arrays(array([0, len(table)], "i4"), rows, type=kind)
