"""The bytes of a file, decompressed within limits if it is a gzip, and the JSON in them."""

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from vramscope.errors import FormatError
from vramscope.malloc import collector_off
from vramscope.model.marks import Note
from vramscope.model.recording import Recording, Run
from vramscope.units import format_bytes

_GZIP = b"\x1f\x8b"
UTF8_MARK = b"\xef\xbb\xbf"
# Snapshots compress 10 to 30 times; a file that compresses 1,000 times, as deflate can, is a zip bomb.
_MOST_INFLATED = 100
_FREE_BYTES = 16 << 20
_CHUNK = 1 << 22


def contents(path: Path) -> bytes:
    """Return all bytes of the file, decompressed if it is a gzip. Raises FormatError if it cannot be read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror or error}") from None
    return b"".join(iter(partial(_Inflating(path).read, _CHUNK), b"")) if data[:2] == _GZIP else data


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put the file's name before the text of a FormatError about its content."""
    try:
        yield
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None


def file_run(
    path: Path,
    name: str,
    recordings: tuple[Recording, ...],
    notes: Iterable[Note] = (),
    times_ns: Sequence[int] | None = None,
) -> Run:
    """Return the run that a file has; its first and last times are those of its traces unless given."""
    if times_ns is None:
        traces = [one.trace.time_ns for one in recordings if len(one.trace)]
        times_ns = [time_ns for times in traces for time_ns in times[[0, -1]].tolist()]
    first_ns, last_ns = min(times_ns, default=0), max(times_ns, default=0)
    return Run(
        name or path.name, str(path), recordings, started_ns=first_ns, ended_ns=last_ns, notes=tuple(notes)
    )


class Stream(Protocol):
    """A file that is read in sequence."""

    def read(self, size: int, /) -> bytes:
        """Return up to *size* bytes; b'' at the end. Raises FormatError."""
        ...


@contextmanager
def opened(path: Path) -> Iterator[Stream]:
    """Open the file for reading in pieces, decompressed if it is a gzip. Raises like ``contents``."""
    try:
        with path.open("rb") as file:
            is_gzip = file.read(2) == _GZIP
            file.seek(0)
            yield _Inflating(path) if is_gzip else file
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror or error}") from None


class _Inflating:
    def __init__(self, path: Path) -> None:
        self._path, self._file = path, gzip.open(path)  # noqa: SIM115 closed with its last reference
        self._size, self._given = path.stat().st_size, 0
        self._limit = _FREE_BYTES + _MOST_INFLATED * self._size

    def read(self, size: int, /) -> bytes:
        try:
            piece = self._file.read(size)
        except (OSError, EOFError, zlib.error) as error:
            raise FormatError(f"{self._path}: damaged gzip ({error}): copy it or dump it again") from None
        self._given += len(piece)
        if self._given > self._limit:
            raise FormatError(
                f"{self._path}: {format_bytes(self._size)} of gzip unpack to more than "
                f"{format_bytes(self._limit)}, as no snapshot does. If you trust it, unpack it yourself: "
                "gunzip -k"
            )
        return piece


def beginning(head: bytes) -> bytes:
    """Return the first bytes of a file, decompressed if it is a gzip; b'' if that is damaged.

    The UTF-8 byte order mark that some editors write is removed.
    """
    if head[:2] != _GZIP:
        return head.removeprefix(UTF8_MARK)
    try:
        return zlib.decompressobj(wbits=31).decompress(head, 1 << 16).removeprefix(UTF8_MARK)
    except zlib.error:
        return b""


def parsed(path: Path, each: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """Return the content of a JSON file, gzipped or not; *each* replaces every object by its result."""
    with collector_off():
        try:
            return json.loads(contents(path), object_hook=each)
        except (ValueError, RecursionError) as error:
            text = f"{path}: damaged JSON ({str(error)[:200]}): copy it or export it again"
            raise FormatError(text) from None
