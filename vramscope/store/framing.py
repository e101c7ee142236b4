"""Reads the complete record batches of a file that may still grow, be cut or be damaged.

Arrow's own reader raises an error at a torn end and cannot continue later. This one yields each message of a
stream once it is whole, remembers where it stopped, and distinguishes an unfinished message from a damaged
one.
"""

import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TypeVar

import pyarrow as pa

from vramscope.store import parts
from vramscope.store.integrity import FileSum, Owner, seal_of

_PREFIX = struct.Struct("<Ii")
_CONTINUATION = 0xFFFFFFFF
_LARGEST_METADATA = 16 << 20  # it grows with the columns, not with the rows: 600 bytes for ours
_LARGEST_BODY = 1 << 30  # 20 million events; a sparse file must not become memory
_BUFFER = 1 << 20
_LONGEST_REASON = 200

_DAMAGE = (pa.ArrowException, ArithmeticError, LookupError, MemoryError, TypeError, ValueError, struct.error)
"""The exceptions that Arrow raises on damaged bytes; not all of them are its own."""

Decoded = TypeVar("Decoded")


class _DamageError(Exception):
    """The bytes at the current offset are not what a writer of Arrow streams writes."""


@dataclass(slots=True)
class StreamFile:
    """One append-only Arrow IPC stream, read as far as it is written."""

    path: Path
    owner: Owner | None = None
    """The trace that the file must belong to, and its place there; None accepts any owner."""
    offset: int = 0
    """The byte at which the next message starts; everything before it has been read."""
    unfinished_bytes: int = 0
    """Bytes after the last whole message: a batch that is being written, or was never finished."""
    damage: str = ""
    """What is wrong at *offset*, or an empty string. Nothing after it is read."""
    sum: FileSum = field(default_factory=FileSum)
    """The rows, messages and checksum of everything before *offset*."""
    last_number: int = 0
    """The number of the last batch read, among all batches of the rank; 0 if they are not numbered."""
    _schema: pa.Schema | None = field(default=None, repr=False)

    def size(self) -> int:
        """Return the size of the file in bytes; 0 if it does not exist (yet)."""
        try:
            status = self.path.stat()
        except OSError:
            return 0
        return status.st_size if stat.S_ISREG(status.st_mode) else 0

    def new_bytes(self) -> int:
        """Return the bytes added since the last read; for a sparse file at most what the disk holds."""
        size = self.size()
        with suppress(OSError, AttributeError):  # Windows does not count blocks
            size = min(size, self.path.stat().st_blocks * 512)
        return max(0, size - self.offset - self.unfinished_bytes)

    def read(self, decode: Callable[[pa.RecordBatch], Decoded]) -> Iterator[Decoded]:
        """Yield every new whole batch, decoded; never raise for what the file holds.

        A batch that *decode* cannot decode counts as damage.
        """
        size = self.size()
        if size == self.offset + self.unfinished_bytes and not self.damage:
            return
        if size < self.offset:
            self.damage = f"it shrank to {size} bytes while it was read"
            return
        # Damage is checked again at each read: a network file system may first show new bytes as zeros.
        self.damage = ""
        try:
            with self.path.open("rb", _BUFFER) as file:
                file.seek(self.offset)
                yield from self._whole(file, size, decode)
        except OSError as error:
            self.damage = str(error.strerror)

    def _whole(
        self, file: BinaryIO, size: int, decode: Callable[[pa.RecordBatch], Decoded]
    ) -> Iterator[Decoded]:
        try:
            while message := _message(file, size - self.offset):
                known, number = self._sealed(message)
                batch = self._batch(message)
                decoded = None if batch is None else decode(batch)
                self.offset += len(message)
                n_rows = 0 if batch is None else len(batch)
                self.sum = FileSum(self.sum.rows + n_rows, self.sum.messages + (number > 0), known)
                self.last_number = max(self.last_number, number)
                if decoded is not None:
                    yield decoded
        except (_DamageError, *_DAMAGE) as error:
            self.damage = (str(error).splitlines() or [type(error).__name__])[0][:_LONGEST_REASON]
        self.unfinished_bytes = size - self.offset

    def _sealed(self, message: bytes) -> tuple[int, int]:
        is_expected = self.owner is not None and bool(self.owner.trace)
        if len(message) == _PREFIX.size:
            if is_expected:
                raise _DamageError("an end of the stream, which this writer never writes")
            return self.sum.crc32, 0
        seal = seal_of(message, self.sum.crc32)
        if seal is None and not is_expected:
            return self.sum.crc32, 0
        if seal is None:
            raise _DamageError("a message without a checksum: it is damaged, or of another recording")
        if not seal.is_whole:
            raise _DamageError("its checksum does not match: it was changed, or what comes before is missing")
        return seal.crc32, seal.number

    def _batch(self, message: bytes) -> pa.RecordBatch | None:
        if len(message) == _PREFIX.size:
            return None  # an end-of-stream marker: ours writes none, and more may follow it
        parsed = pa.ipc.read_message(pa.py_buffer(message))
        if parsed.type == "schema":
            self._schema = pa.ipc.read_schema(parsed)
            complaint = self.owner.complaint(self._schema) if self.owner is not None else ""
            if complaint:
                raise _DamageError(complaint)
            return None
        if parsed.type != "record batch" or self._schema is None:
            raise _DamageError(f"a message of type {parsed.type!r} has no place here")
        if parts.is_of_summary(f"{self.path.parent.name}/{self.path.name}"):
            # A compressed batch, without the threads of Arrow that ``read_record_batch`` decompresses with.
            # In a training, Arrow's allocator keeps what these threads allocated and the compactor
            # released: 1 MB more with each compaction, 75 MB after 10 minutes at 25,000 events a second.
            stream = pa.py_buffer(b"".join((self._schema.serialize(), message)))
            batch = pa.ipc.open_stream(
                stream, options=pa.ipc.IpcReadOptions(use_threads=False)
            ).read_next_batch()
        else:
            batch = pa.ipc.read_record_batch(parsed, self._schema)
        # Offsets of strings and lists come from the file: without this a wrong one would crash the process.
        batch.validate(full=True)
        return batch


def _message(file: BinaryIO, available: int) -> bytes:
    """Return the next message with its prefix; empty if it is not whole."""
    prefix = file.read(_PREFIX.size)
    if len(prefix) < _PREFIX.size:
        return b""
    mark, metadata_size = _PREFIX.unpack(prefix)
    if mark != _CONTINUATION or not 0 <= metadata_size <= _LARGEST_METADATA or metadata_size % 8:
        raise _DamageError(f"not an Arrow message: it starts with {prefix.hex()}")
    if metadata_size == 0:
        return prefix
    if _PREFIX.size + metadata_size > available:
        return b""
    metadata = file.read(metadata_size)
    if len(metadata) < metadata_size:
        return b""
    body_size = _body_size(metadata)
    if body_size > _LARGEST_BODY:
        raise _DamageError(f"a message claims {body_size} bytes")
    if _PREFIX.size + metadata_size + body_size > available:
        return b""
    message = prefix + metadata + file.read(body_size)
    return message if len(message) == _PREFIX.size + metadata_size + body_size else b""


def _body_size(metadata: bytes) -> int:
    """Return ``Message.bodyLength`` (Arrow's Message.fbs: field 3 of the root table) without flatbuffers."""
    (table,) = struct.unpack_from("<I", metadata)
    (back,) = struct.unpack_from("<i", metadata, table)
    vtable = table - back
    if vtable < 0:
        raise _DamageError("not an Arrow message: its metadata point outside of it")
    (vtable_size,) = struct.unpack_from("<H", metadata, vtable)
    if vtable_size < 12:
        return 0
    (at,) = struct.unpack_from("<H", metadata, vtable + 10)
    if not at:
        return 0
    (size,) = struct.unpack_from("<q", metadata, table + at)
    if size < 0:
        raise _DamageError(f"a message claims {size} bytes")
    return int(size)
