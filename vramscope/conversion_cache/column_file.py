"""A file of columns that is memory-mapped instead of read: the format of the conversion cache.

It is not an exchange format (that is the trace directory): it is read on the machine that wrote it, by the
same version of vramscope. The layout is ``columns | JSON | trailer``. The JSON lists the columns of each
table, with checksums that reveal a damaged file; the trailer says where the JSON is.
"""

import json
import mmap
import os
import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib import import_module
from io import FileIO
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from vramscope.model.recording import Run
from vramscope.model.table import Table

_MAGIC = b"vramscope-mapped"
_TRAILER = struct.Struct("<QQQ16s")
"""The sizes of columns and JSON in bytes, the checksum of the JSON, and the magic bytes."""
_ALIGNMENT = 64
_BLOCK = 1 << 20
_MODEL = "vramscope.model."
_CLASS = re.compile(r"([a-z_]+)\.([A-Z][A-Za-z]+)")


class DamagedError(Exception):
    """The file is not as ``write`` wrote it."""


def write(file: IO[bytes], run: Run, about: Mapping[str, Any]) -> None:
    """Write *run* and *about* (JSON) into an empty file.

    Raises OSError, and TypeError if the run contains an object that the format cannot store.
    """
    writer = _ColumnWriter(file)
    # The run first: it fills the tables.
    text = json.dumps({"run": writer.plain(run), "tables": writer.tables, "about": about}).encode()
    file.write(text)
    file.write(_TRAILER.pack(writer.n_bytes, len(text), zlib.crc32(text), _MAGIC))


def read(path: Path) -> tuple[Run, Any]:
    """Return the run with mapped columns, and the *about* of ``write``. Raises OSError or DamagedError.

    Every byte is checked once, but not kept in this process: 0.02 s per 100 MB in the page cache.
    """
    with path.open("rb", buffering=0) as file:
        text = _text(file)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            return _ColumnReader(file, mapped, text["tables"]).value(text["run"]), text["about"]
        except (ArithmeticError, AttributeError, ImportError, LookupError, TypeError, ValueError) as error:
            raise DamagedError(str(error)) from None


def _text(file: FileIO) -> Any:
    size = os.fstat(file.fileno()).st_size
    if size < _TRAILER.size:
        raise DamagedError("it ends early")
    file.seek(size - _TRAILER.size)
    n_bytes, n_text, text_sum, magic = _TRAILER.unpack(file.read(_TRAILER.size))
    if magic != _MAGIC or n_bytes + n_text + _TRAILER.size != size:
        raise DamagedError("it has no trailer")
    file.seek(n_bytes)
    text = file.read(n_text)
    if zlib.crc32(text) != text_sum:
        raise DamagedError("its text changed")
    try:
        return json.loads(text)
    except ValueError as error:
        raise DamagedError(str(error)) from None


def _sum(block: Any, at: int) -> int:
    """Return the checksum of the block at byte *at* of its column.

    It changes if a word changes, or if blocks change places.
    """
    words = np.frombuffer(block, "<u8", count=len(block) // 8)
    rest = int.from_bytes(bytes(block[len(words) * 8 :]), "little")
    return (int(words.sum(dtype="u8")) + rest) * (at // _BLOCK * 2 + 1)


class _ColumnWriter:
    """Writes columns to the file at once; everything else becomes JSON."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._known: dict[int, int] = {}
        self._rest = bytearray()
        self.tables: list[Any] = []
        self.n_bytes = 0
        self.sum = 0

    def plain(self, value: Any) -> Any:
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, Table):
            return {"table": self._table(value)}
        if isinstance(value, Enum):
            return {"enum": _name(type(value)), "value": value.value}
        if isinstance(value, tuple):
            return [self.plain(each) for each in value]
        if isinstance(value, Mapping):
            return {"map": [[self.plain(key), self.plain(each)] for key, each in value.items()]}
        if not is_dataclass(value):
            raise TypeError(f"a {type(value).__name__} has no place in a file")
        return {
            "is": _name(type(value)),
            "fields": {f.name: self.plain(getattr(value, f.name)) for f in fields(value)},
        }

    def _table(self, table: Table) -> int:
        """Return the table's number; recordings of one process share their stacks."""
        if id(table) not in self._known:
            columns = {name: self._column(column) for name, column in table.columns()}
            others = [f.name for f in fields(table) if f.name not in table.DTYPES]  # type: ignore[arg-type]
            rest = {name: self.plain(getattr(table, name)) for name in others}
            self._known[id(table)] = len(self.tables)
            self.tables.append(
                {"is": _name(type(table)), "rows": len(table), "columns": columns, "rest": rest}
            )
        return self._known[id(table)]

    def _column(self, column: NDArray[Any]) -> Any:
        """Return the column's place in the file, or the value that all rows have."""
        if len(column) > 1 and column[0] == column[-1] and (column == column[0]).all():
            return {"all": column[0].item()}
        data = memoryview(np.ascontiguousarray(column).data).cast("B") if len(column) else memoryview(b"")
        found = {"at": self.n_bytes, "sum": 0}
        for at in range(0, len(data), _BLOCK):
            found["sum"] += _sum(data[at : at + _BLOCK], at)
        self._file.write(data)
        self._file.write(bytes(-len(data) % _ALIGNMENT))
        self.n_bytes += len(data) + -len(data) % _ALIGNMENT
        return found


class _ColumnReader:
    """Rebuilds what ``_ColumnWriter`` wrote."""

    def __init__(self, file: FileIO, mapped: mmap.mmap, tables: list[Any]) -> None:
        self._file, self._mapped = file, mapped
        self._tables: list[Table] = []
        # A table that is part of another one comes before it.
        for table in tables:
            self._tables.append(self._table(table))

    def value(self, given: Any) -> Any:
        """Return the object that ``plain`` converted."""
        if isinstance(given, list):
            return tuple(map(self.value, given))
        if not isinstance(given, dict):
            return given
        if "table" in given:
            return self._tables[given["table"]]
        if "enum" in given:
            return _class(given["enum"])(given["value"])
        if "map" in given:
            return {self.value(key): self.value(each) for key, each in given["map"]}
        return _class(given["is"])(**{name: self.value(each) for name, each in given["fields"].items()})

    def _table(self, given: Any) -> Table:
        kind = _class(given["is"])
        if not issubclass(kind, Table):
            raise DamagedError(f"{kind.__name__} is no table")
        rest = {name: self.value(each) for name, each in given["rest"].items()}
        columns = {
            name: self._column(given["columns"][name], np.dtype(dtype), given["rows"])
            for name, dtype in kind.DTYPES.items()
        }
        return kind(**columns, **rest)

    def _column(self, given: Any, dtype: np.dtype[Any], n_rows: int) -> NDArray[Any]:
        if "all" in given:
            return np.broadcast_to(np.array(given["all"], dtype), n_rows)
        size = n_rows * dtype.itemsize
        if size and given["sum"] != self._sum(given["at"], size):
            raise DamagedError("a column changed")
        return (
            np.frombuffer(self._mapped, dtype, count=n_rows, offset=given["at"])
            if size
            else np.zeros(0, dtype)
        )

    def _sum(self, start: int, size: int) -> int:
        found, buffer = 0, memoryview(bytearray(_BLOCK))
        self._file.seek(start)
        for at in range(0, size, _BLOCK):
            block = buffer[: min(_BLOCK, size - at)]
            if self._file.readinto(block) != len(block):
                raise DamagedError("it ends early")
            found += _sum(block, at)
        return found


def _class(name: str) -> Any:
    parts = _CLASS.fullmatch(name)
    found = getattr(import_module(_MODEL + parts[1]), parts[2]) if parts else None
    if not isinstance(found, type) or not (is_dataclass(found) or issubclass(found, Enum)):
        raise DamagedError(f"{name[:40]!r} is not of the model")
    return found


def _name(kind: type) -> str:
    if not kind.__module__.startswith(_MODEL):
        raise TypeError(f"{kind.__name__} is not of the model")
    return f"{kind.__module__.removeprefix(_MODEL)}.{kind.__name__}"
