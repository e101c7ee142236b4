"""Conversion between NumPy and Arrow without pandas."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vramscope.store.schema import arrow_type, numpy_type


class Names:
    """A table that holds each string once; index 0 is the empty string."""

    def __init__(self) -> None:
        self._index = {"": 0}

    def indices(self, column: pa.Array) -> NDArray[Any]:
        """Return the index of each row's string; null counts as the empty string."""
        encoded = (column.fill_null("") if column.null_count else column).dictionary_encode()
        texts = encoded.dictionary.to_pylist()
        own = np.array([self._index.setdefault(text, len(self._index)) for text in texts], "i4")
        return own[to_numpy(encoded.indices)]

    def tuple(self) -> tuple[str, ...]:
        """Return the strings in the order of their indices."""
        return tuple(self._index)


def numbers(batch: pa.RecordBatch, name: str, dtype: str, absent: int = 0) -> NDArray[Any]:
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


def to_numpy(column: pa.Array) -> NDArray[Any]:
    """Return numbers or booleans without nulls as a NumPy view of Arrow's buffer (booleans are unpacked)."""
    data, end = column.buffers()[1], column.offset + len(column)
    if data is None:
        return np.zeros(0, numpy_type(column.type))
    if pa.types.is_boolean(column.type):
        bits = np.unpackbits(np.frombuffer(data, "u1"), count=end, bitorder="little")
        return bits[column.offset :].view("?")
    return np.frombuffer(data, numpy_type(column.type), count=end)[column.offset :]


def number_array(values: NDArray[Any]) -> pa.Array:
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
