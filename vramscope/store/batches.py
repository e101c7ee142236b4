"""The tables of the model as Arrow's record batches."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vramscope.model.snapshot import Snapshot
from vramscope.model.table import Table
from vramscope.store.columns import number_array, string_array
from vramscope.store.framing import StreamFile
from vramscope.store.integrity import FileSum, Owner, sealed
from vramscope.store.schema import SCHEMAS, STATES, SUFFIX
from vramscope.store.write.append_file import AppendFile


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


class SealedFile:
    """One stream of a trace, appended to: every message with a checksum over all up to it."""

    __slots__ = ("_file", "_next", "_sum")

    def __init__(self, path: Path, owner: Owner, stream: str, known: FileSum | None = None) -> None:
        """*known*: what the file holds already. Raises OSError."""
        self._file = AppendFile(path)
        # Ctrl-C may have come before anybody remembered what the file holds.
        self._sum = known or (_sum_of(path) if self._file.size else FileSum())
        self._next: tuple[int, FileSum] | None = None
        if not self._file.size:
            self._append(owner.named(SCHEMAS[stream]).serialize(), 0, 0)

    @property
    def size(self) -> int:
        """Bytes of whole messages."""
        return self._file.size

    @property
    def sum(self) -> FileSum:
        """Over all that is in the file."""
        # What the file has counts: Ctrl-C may have come between the write and whatever follows it.
        if self._next is not None and self._next[0] == self._file.size:
            self._sum = self._next[1]
        return self._sum

    def append(self, rows: pa.RecordBatch, number: int = 0, *, is_packed: bool = False) -> int:
        """Add a batch, the *number*-th of its rank; returns its bytes. Raises OSError."""
        return self._append(compressed(rows) if is_packed else rows.serialize(), number, len(rows))

    def close(self, *, durable: bool) -> None:
        """Let go of the file; with *durable* after the disk has it. Raises OSError."""
        self._file.close(durable=durable)

    def _append(self, message: Any, number: int, n_rows: int) -> int:
        before = self.sum
        data, crc = sealed(message, before.crc32, number)
        after = FileSum(before.rows + n_rows, before.messages + (number > 0), crc)
        self._next = (self._file.size + len(data), after)
        return self._file.append(data)


def _sum_of(path: Path) -> FileSum:
    file = StreamFile(path)
    for _ in file.read(lambda _batch: True):
        pass
    return file.sum


def write_compressed(
    path: Path, rows: Sequence[pa.RecordBatch], owner: Owner, known: FileSum | None = None
) -> FileSum:
    """Append *rows* as one batch, and wait for the disk; what the file then holds. Raises OSError.

    *known*: what it holds already.
    """
    stream = path.name.removesuffix(SUFFIX).rpartition("-")[0]
    file = SealedFile(path, owner, stream, known)
    try:
        plain = [batch.replace_schema_metadata(None) for batch in rows]
        for whole in pa.Table.from_batches(plain).combine_chunks().to_batches() if plain else []:
            file.append(whole, is_packed=True)
        return file.sum
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
