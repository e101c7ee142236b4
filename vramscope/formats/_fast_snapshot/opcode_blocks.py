"""Reads the opcodes of a pickle of protocol 4 or 5 in blocks, without the pickle's frame headers."""

from vramscope.formats._file import Stream

FRAME = 0x95
_LONG_TEXT_WIDTH = {ord("X"): 4, 0x8D: 8}
"""The opcodes of strings too long for a frame, which stand between two frames; the bytes of their length."""
_HEADER = 9
_EVERYTHING = 1 << 63


class Irregular(Exception):  # noqa: N818 not an error: the other reader takes over
    """The file is damaged or not as torch writes it; the reader that checks every opcode takes over."""


class Body:
    """The opcodes of a pickle without its frame headers.

    An opcode may reach over the end of a frame; it is read as if there were no frames, as CPython's unpickler
    reads it. So no opcode can hide there.
    """

    def __init__(self, file: Stream) -> None:
        """Read the header. Raises Irregular if the protocol is not 4 or 5."""
        self._file = file
        self._rest = 0
        """The bytes until the next header; 0 if one may follow."""
        self._taken = b""
        """Bytes read from the file and not returned yet."""
        head = file.read(2)
        if head[:1] != b"\x80" or head[1:] not in (b"\x04", b"\x05"):
            raise Irregular

    def read(self, size: int) -> list[memoryview]:
        """Return the pieces of the next *size* bytes or somewhat fewer; none at the end.

        Raises Irregular if the file ends inside a frame.
        """
        while raw := self._file.read(size):
            if pieces := self._without_headers(self._taken + raw if self._taken else raw):
                return pieces
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
        """Return where the contents of the piece at *at* begin; None if its header is not complete yet."""
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
