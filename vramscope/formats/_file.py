"""What does a file hold? Its bytes, unpacked within bounds."""

import gzip
import zlib
from pathlib import Path

from vramscope.errors import FormatError
from vramscope.units import format_bytes

_GZIP = b"\x1f\x8b"
# Snapshots pack 10 to 30 times smaller; 1,000 times, as deflate can, is a bomb.
_MOST_INFLATED = 100
_FREE_BYTES = 16 << 20
_CHUNK = 1 << 22


def contents(path: Path) -> bytes:
    """All bytes of the file, unpacked if it is a gzip; raises FormatError where it cannot be read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror or error}") from None
    return _inflated(path, len(data)) if data[:2] == _GZIP else data


def _inflated(path: Path, size: int) -> bytes:
    limit = _FREE_BYTES + _MOST_INFLATED * size
    pieces, total = [], 0
    try:
        with gzip.open(path) as file:
            while piece := file.read(_CHUNK):
                pieces.append(piece)
                total += len(piece)
                if total > limit:
                    raise FormatError(
                        f"{path}: {format_bytes(size)} of gzip unpack to more than {format_bytes(limit)}, "
                        "as no snapshot does. If you trust it, unpack it yourself: gunzip -k"
                    )
    except (OSError, EOFError, zlib.error) as error:
        raise FormatError(f"{path}: damaged gzip ({error}): copy it or dump it again") from None
    return b"".join(pieces)


def beginning(head: bytes) -> bytes:
    """The first bytes of a file, unpacked if it is a gzip; b'' where it is a damaged one."""
    if head[:2] != _GZIP:
        return head
    try:
        return zlib.decompressobj(wbits=31).decompress(head, 1 << 16)
    except zlib.error:
        return b""
