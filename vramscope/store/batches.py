"""Conversion of the model's tables to Arrow record batches, and the files that they are appended to."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from vramscope.model.snapshot import Snapshot
from vramscope.model.table import Array, Table
from vramscope.store.framing import StreamFile
from vramscope.store.integrity import FileSum, Owner, sealed
from vramscope.store.schema import SCHEMAS, STATES, SUFFIX, arrow_type, numpy_type
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


def _named(column: Array, names: Sequence[str]) -> pa.Array:
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


class Names:
    """A table that holds each string once; index 0 is the empty string."""

    def __init__(self) -> None:
        self._index = {"": 0}

    def indices(self, column: pa.Array) -> Array:
        """Return the index of each row's string; null counts as the empty string."""
        encoded = (column.fill_null("") if column.null_count else column).dictionary_encode()
        texts = encoded.dictionary.to_pylist()
        own = np.array([self._index.setdefault(text, len(self._index)) for text in texts], "i4")
        return own[to_numpy(encoded.indices)]

    def tuple(self) -> tuple[str, ...]:
        """Return the strings in the order of their indices."""
        return tuple(self._index)


def numbers(batch: pa.RecordBatch, name: str, dtype: str, absent: int = 0) -> Array:
    """Return the column *name* as a NumPy array of *dtype*.

    A missing column is filled with *absent*, a null is 0, and a wider type is converted. Raises
    pa.ArrowException if the values are not numbers that fit *dtype*.
    """
    at = batch.schema.get_field_index(name)
    if at < 0:
        return np.full(len(batch), absent, dtype)
    column = batch.column(at)
    if column.type != arrow_type(dtype):
        column = column.cast(arrow_type(dtype))
    if column.null_count:
        column = column.fill_null(False if dtype == "?" else 0)
    return to_numpy(column)


def strings(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return the column *name* as an array of strings; a missing column is filled with empty strings."""
    at = batch.schema.get_field_index(name)
    return pa.repeat("", len(batch)) if at < 0 else batch.column(at).cast(pa.string())


# pa.array and Array.to_numpy import pandas if it is installed. That costs 0.3 s at the start of every
# training and of every report, and nothing here needs it. The functions below use Arrow's buffers instead.


def to_numpy(column: pa.Array) -> Array:
    """Return numbers or booleans without nulls as a NumPy view of Arrow's buffer (booleans are unpacked)."""
    data, end = column.buffers()[1], column.offset + len(column)
    if data is None:
        return np.zeros(0, numpy_type(column.type))
    if pa.types.is_boolean(column.type):
        bits = np.unpackbits(np.frombuffer(data, "u1"), count=end, bitorder="little")
        return bits[column.offset :].view("?")
    return np.frombuffer(data, numpy_type(column.type), count=end)[column.offset :]


def number_array(values: Array) -> pa.Array:
    """Return numbers or booleans as an Arrow view of NumPy's memory (booleans are packed)."""
    data = np.packbits(values, bitorder="little") if values.dtype == bool else np.ascontiguousarray(values)
    return pa.Array.from_buffers(arrow_type(values.dtype.str), len(values), [None, pa.py_buffer(data)])


def string_array(texts: Iterable[str]) -> pa.Array:
    """Return an Arrow array of strings; lone surrogates (file names that are not UTF-8) are escaped."""
    return string_array_of(encoded_texts(texts))


def encoded_texts(texts: Iterable[str]) -> list[bytes]:
    """Return the texts in UTF-8; lone surrogates are escaped."""
    return [text.encode(errors="backslashreplace") for text in texts]


def string_array_of(encoded: Sequence[bytes]) -> pa.Array:
    """Return an Arrow array of strings from their UTF-8."""
    ends = np.zeros(len(encoded) + 1, "i4")
    ends[1:] = np.cumsum(np.fromiter(map(len, encoded), "i8", len(encoded)))
    data = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), data)
