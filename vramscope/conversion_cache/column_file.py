"""A file of columns that is memory-mapped instead of read: the format of the conversion cache.

It is not an exchange format (that is the trace directory): it is read on the machine that wrote it, by the
same version of vramscope. The layout is ``columns | pickle | trailer``. The pickle has everything but the
columns, of which it has the places and checksums that reveal a damaged file; it may name nothing but classes
of the model. The trailer says where the pickle is.
"""

import io
import mmap
import os
import pickle
import struct
import zlib
from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import Enum
from importlib import import_module
from io import FileIO
from pathlib import Path
from typing import IO, Any

import numpy as np

from vramscope.model.recording import Run
from vramscope.model.table import Array

_MAGIC = b"vramscope-mapped"
_TRAILER = struct.Struct("<QQQ16s")
"""The sizes of columns and pickle in bytes, the checksum of the pickle, and the magic bytes."""
_ALIGNMENT = 64
_BLOCK = 1 << 20
_MODEL = "vramscope.model."


class DamagedError(Exception):
    """The file is not as ``write`` wrote it."""


def write(file: IO[bytes], run: Run, about: Mapping[str, Any]) -> None:
    """Write *run* and *about* (JSON) into an empty file.

    Raises OSError, and TypeError or ValueError if the run contains an object that the format cannot store.
    """
    rest = io.BytesIO()
    writer = _ColumnWriter(rest, file)
    try:
        writer.dump((run, dict(about)))
    except pickle.PickleError as error:
        raise ValueError(str(error)) from None
    file.write(rest.getbuffer())
    file.write(_TRAILER.pack(writer.n_bytes, rest.tell(), zlib.crc32(rest.getbuffer()), _MAGIC))


def read(path: Path) -> tuple[Run, Any]:
    """Return the run with mapped columns, and the *about* of ``write``. Raises OSError or DamagedError.

    Every byte is checked once, but not kept in this process: 0.02 s per 100 MB in the page cache.
    """
    with path.open("rb", buffering=0) as file:
        rest = _rest(file)
        try:
            run, about = _ColumnReader(io.BytesIO(rest), file).load()
        except DamagedError:
            raise
        except Exception as error:  # noqa: BLE001 -- what a damaged pickle raises may be anything
            raise DamagedError(str(error)) from None
        return run, about


def _rest(file: FileIO) -> bytes:
    size = os.fstat(file.fileno()).st_size
    if size < _TRAILER.size:
        raise DamagedError("it ends early")
    file.seek(size - _TRAILER.size)
    n_bytes, n_rest, rest_sum, magic = _TRAILER.unpack(file.read(_TRAILER.size))
    if magic != _MAGIC or n_bytes + n_rest + _TRAILER.size != size:
        raise DamagedError("it has no trailer")
    file.seek(n_bytes)
    rest = file.read(n_rest)
    if zlib.crc32(rest) != rest_sum:
        raise DamagedError("what is beside its columns changed")
    return rest


def _sum(block: Any, at: int) -> int:
    """Return the checksum of the block at byte *at* of its column.

    It changes if a word changes, or if blocks change places.
    """
    words = np.frombuffer(block, "<u8", count=len(block) // 8)
    rest = int.from_bytes(bytes(block[len(words) * 8 :]), "little")
    return (int(words.sum(dtype="u8")) + rest) * (at // _BLOCK * 2 + 1)


class _ColumnWriter(pickle.Pickler):
    """Writes columns to the file at once; in the pickle is the place of each."""

    def __init__(self, rest: IO[bytes], file: IO[bytes]) -> None:
        super().__init__(rest, protocol=5)
        self._file = file
        self.n_bytes = 0

    def persistent_id(self, value: Any) -> Any:
        """Return the type and length of a column, its place and its sum, or the value that all rows have."""
        if not isinstance(value, np.ndarray):
            return None
        kind = value.dtype.str, len(value)
        if len(value) > 1 and value[0] == value[-1] and (value == value[0]).all():
            return *kind, value[0].item()
        data = memoryview(np.ascontiguousarray(value).data).cast("B") if len(value) else memoryview(b"")
        start, padding = self.n_bytes, -len(data) % _ALIGNMENT
        self._file.write(data)
        self._file.write(bytes(padding))
        self.n_bytes += len(data) + padding
        return *kind, start, sum(_sum(data[at : at + _BLOCK], at) for at in range(0, len(data), _BLOCK))


class _ColumnReader(pickle.Unpickler):
    """Reads what ``_ColumnWriter`` wrote, and makes objects of the model alone."""

    def __init__(self, rest: IO[bytes], file: FileIO) -> None:
        super().__init__(rest)
        self._file = file
        self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def find_class(self, module: str, name: str) -> Any:
        """Return a class of the model. Raises DamagedError for any other name."""
        found = getattr(import_module(module), name, None) if module.startswith(_MODEL) else None
        is_plain = isinstance(found, type) and (is_dataclass(found) or issubclass(found, Enum | tuple))
        if not is_plain or found.__module__ != module:
            raise DamagedError(f"{name[:40]!r} is not of the model")
        return found

    def persistent_load(self, place: Any) -> Array:
        """Return the column at a place of ``persistent_id``, mapped."""
        kind, n_rows, *where = place
        dtype = np.dtype(kind)
        if len(where) == 1:
            return np.broadcast_to(np.array(where[0], dtype), n_rows)
        start, wanted = where
        if n_rows and wanted != self._sum(start, n_rows * dtype.itemsize):
            raise DamagedError("a column changed")
        if not n_rows:
            return np.zeros(0, dtype)
        return np.frombuffer(self._mapped, dtype, count=n_rows, offset=start)

    def _sum(self, start: int, size: int) -> int:
        found, buffer = 0, memoryview(bytearray(_BLOCK))
        self._file.seek(start)
        for at in range(0, size, _BLOCK):
            block = buffer[: min(_BLOCK, size - at)]
            if self._file.readinto(block) != len(block):
                raise DamagedError("it ends early")
            found += _sum(block, at)
        return found
