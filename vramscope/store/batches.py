"""Conversion of the model's tables to Arrow record batches, and the files that they are appended to."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vramscope.model.snapshot import Snapshot
from vramscope.model.table import Table
from vramscope.store.columns import encoded_texts, number_array, string_array_of
from vramscope.store.framing import StreamFile
from vramscope.store.integrity import FileSum, Owner, sealed
from vramscope.store.schema import SCHEMAS, STATES, SUFFIX
from vramscope.store.write.append_file import AppendFile
from vramscope.store.write.own_file import Identity


def batch(stream: str, columns: Sequence[pa.Array]) -> pa.RecordBatch:
    """Return a record batch of *stream* from its columns, which are in the order of the schema."""
    return pa.RecordBatch.from_arrays(list(columns), schema=SCHEMAS[stream])


def compressed(rows: pa.RecordBatch) -> memoryview:
    """Return the Arrow message of one batch with compressed buffers: for rare, long-lived data."""
    codec = "zstd" if pa.Codec.is_available("zstd") else None
    # Threads of Arrow would keep memory of its allocator in the training.
    options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=options) as stream:
        stream.write_batch(rows)
    # Only the bytes between the schema and the end-of-stream marker: a file that grows has no such marker.
    return memoryview(sink.getvalue())[len(rows.schema.serialize()) : -8]


class SealedFile:
    """An append-only file of one stream; every message carries a checksum over the file up to it."""

    def __init__(
        self,
        path: Path,
        owner: Owner,
        stream: str,
        known: FileSum | None = None,
        *,
        place: tuple[Identity, int] | None = None,
        is_new: bool = False,
    ) -> None:
        """Open *path*; *known* is the sum of what the file already holds, *place* what it had.

        With *is_new* the file must not exist. Raises OSError.
        """
        self._file = AppendFile(path, place, is_new=is_new)
        # Ctrl-C may have interrupted the writer before it stored the sum of the file.
        self._sum = known or (_sum_of(path) if self._file.size else FileSum())
        self._next: tuple[int, FileSum] | None = None
        if not self._file.size:
            self._append(owner.named(SCHEMAS[stream]).serialize(), 0, 0)

    @property
    def size(self) -> int:
        """The size of all whole messages, in bytes."""
        return self._file.size

    @property
    def place(self) -> tuple[Identity, int]:
        """Which file it is, and its size."""
        return self._file.place

    @property
    def sum(self) -> FileSum:
        """The rows, messages and checksum of the whole file."""
        # The size of the file decides: Ctrl-C may have come between the write and the statements after it.
        if self._next is not None and self._next[0] == self._file.size:
            self._sum = self._next[1]
        return self._sum

    def append(self, rows: pa.RecordBatch, number: int = 0, *, is_packed: bool = False) -> int:
        """Append a batch, the *number*-th of its rank; return its size in bytes. Raises OSError."""
        return self._append(compressed(rows) if is_packed else rows.serialize(), number, len(rows))

    def close(self, *, durable: bool) -> None:
        """Close the file; with *durable*, wait for the disk first. Raises OSError."""
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
    """Append *rows* as one compressed batch and wait for the disk. Raises OSError.

    *known* is the sum of what the file already holds; the sum of the whole file is returned.
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
    """Return the allocator's state as a batch of one row."""
    head = [array([state.event], "i8"), array([state.time_ns], "i8"), array([reported], "?")]
    return batch(STATES, [*head, _list_of_one(state.segments), _list_of_one(state.blocks)])


def array(values: Sequence[int], dtype: str) -> pa.Array:
    """Return *values* as an Arrow column of numbers."""
    return number_array(np.array(values, dtype))


def arrays(table: Table) -> list[pa.Array]:
    """Return the columns of a table, with names as strings."""
    names = getattr(table, "names", ())
    return [
        _named(column, names) if names and name in table.TEXT_COLUMNS else number_array(column)
        for name, column in table.columns()
    ]


def _named(column: NDArray[Any], names: Sequence[str]) -> pa.Array:
    """Return the strings that the indices in *column* stand for.

    The cost grows with the rows of the call, not with the number of all names so far.
    """
    # Without Arrow's take: that imports pyarrow.compute, 0.06 s of the recorded process.
    index = column.tolist()
    used = list(dict.fromkeys(index))
    encoded = dict(zip(used, encoded_texts(names[each] for each in used), strict=True))
    return string_array_of(list(map(encoded.__getitem__, index)))


def _list_of_one(table: Table) -> pa.Array:
    """Return all rows of *table* as a list column of one row."""
    kind = SCHEMAS[STATES].field(type(table).__name__.lower()).type
    rows = pa.StructArray.from_arrays(arrays(table), fields=list(kind.value_type))
    return pa.ListArray.from_arrays(array([0, len(table)], "i4"), rows, type=kind)
