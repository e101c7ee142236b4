"""The opcodes of a pickle of protocol 4 or 5, in blocks: without its frames, and never all at once."""

from typing import Protocol

FRAME = 0x95
_LONG_TEXT_WIDTH = {ord("X"): 4, 0x8D: 8}
"""Strings too long for a frame stand between two: opcode and bytes of their length."""
_HEADER = 9
_EVERYTHING = 1 << 63


class Irregular(Exception):  # noqa: N818 not an error: the other reader takes over
    """Not what torch writes, or damaged: for the reader that looks at every opcode."""


class Readable(Protocol):
    """A binary file."""

    def read(self, size: int, /) -> bytes:
        """Up to *size* bytes; b'' at the end."""
        ...


class Body:
    """What a pickle says, frame headers taken out.

    An opcode may reach over the end of a frame, as C's unpickler would read it were there no frames: so it
    cannot hide there.
    """

    __slots__ = ("_file", "_rest", "_taken")

    def __init__(self, file: Readable) -> None:
        """Raises Irregular on another protocol."""
        self._file = file
        self._rest = 0
        """Bytes until the next header; 0 where one may come."""
        self._taken = b""
        """Read from the file, not yet given."""
        head = file.read(2)
        if head[:1] != b"\x80" or head[1:] not in (b"\x04", b"\x05"):
            raise Irregular

    def read(self, size: int) -> list[memoryview]:
        """The pieces of the next *size* bytes or somewhat fewer; none at the end. Raises Irregular on a torn
        file."""
        while raw := self._file.read(size):
            if said := self._without_headers(self._taken + raw if self._taken else raw):
                return said
        if self._taken or 0 < self._rest < _EVERYTHING // 2:
            raise Irregular
        return []

    def _without_headers(self, raw: bytes) -> list[memoryview]:
        self._taken = b""
        view, pieces, at = memoryview(raw), [], 0
        while at < len(raw):
            if not self._rest:
                start = self._header(raw, at)
                if start is None:
                    self._taken = raw[at:]
                    break
                at = start
            end = min(at + self._rest, len(raw))
            if end > at:
                pieces.append(view[at:end])
            self._rest -= end - at
            at = end
        return pieces

    def _header(self, raw: bytes, at: int) -> int | None:
        """Where the piece at *at* begins to say something; None where more of the file must be seen first."""
        opcode = raw[at]
        if opcode == FRAME:
            if at + _HEADER > len(raw):
                return None
            self._rest = int.from_bytes(raw[at + 1 : at + _HEADER], "little")
            return at + _HEADER
        width = _LONG_TEXT_WIDTH.get(opcode, 0)
        if not width:
            self._rest = _EVERYTHING
            return at
        if at + 1 + width > len(raw):
            return None
        self._rest = 1 + width + int.from_bytes(raw[at + 1 : at + 1 + width], "little")
        return at
