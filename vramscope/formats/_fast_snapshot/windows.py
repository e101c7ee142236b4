"""Loads a file window by window, each beside the work on the one before it."""

from collections.abc import Sequence
from concurrent.futures import Executor, Future
from typing import NamedTuple

import numpy as np

from vramscope.formats._fast_snapshot.opcode_blocks import Body, Irregular
from vramscope.formats._fast_snapshot.opcode_shapes import LONGEST
from vramscope.model.table import Array

PAD = bytes(LONGEST + 1024)
"""What follows a window, so that what is compared may reach beyond its end."""

_HEAD = 64 << 10
"""The bytes before a window for the rest of the one before it, which is nearly always less than one event."""

_LONGEST_REST = 64 << 20
"""The most bytes of an unfinished text or event that are carried over to the next window."""


class LoadedWindow(NamedTuple):
    """The opcodes of one window, and before them what the one before it left."""

    data: bytearray
    begin: int
    end: int
    """The offset after the last opcode; ``PAD`` follows."""
    n_new: int
    """The bytes that were read for this window; 0 at the end of the file."""
    starts: Array | None
    """The offsets at which events may begin; None where it was not known yet how they begin."""


class _Loaded(NamedTuple):
    data: bytearray
    end: int
    begins: tuple[bytes, ...]
    starts: Array


class Windows:
    """The windows of a file, *size* bytes each.

    A second thread reads the next window and looks for events in it: a tenth of the time of a file each. Two
    buffers take turns: allocating one per window would cost as much as copying into it.
    """

    def __init__(self, body: Body, size: int, beside: Executor) -> None:
        self._body, self._size, self._beside = body, size, beside
        self._other = self._buffer(size)
        self._coming: Future[_Loaded] = beside.submit(self._load, self._buffer(size), ())

    @staticmethod
    def _buffer(size: int) -> bytearray:
        return bytearray(_HEAD + size + size // 8 + len(PAD))

    def after(self, rest: memoryview, begins: Sequence[bytes]) -> LoadedWindow:
        """Return the next window, which begins with *rest*; events in it begin with one of *begins*.

        The buffer of the window before it is used again. Raises Irregular.
        """
        if len(rest) > _LONGEST_REST:
            raise Irregular
        loaded = self._coming.result()
        data, end, shift = loaded.data, loaded.end, max(len(rest) - _HEAD, 0)
        if shift:
            data = bytearray(shift) + data
            end += shift
        new, begin = _HEAD + shift, _HEAD + shift - len(rest)
        data[begin:new] = rest
        rest.release()
        starts = None
        if begins and loaded.begins == tuple(begins):
            starts = np.concatenate([candidates(data, begin, new, begins), loaded.starts + shift])
        if end > new:
            self._coming = self._beside.submit(self._load, self._other, tuple(begins))
        self._other = loaded.data
        return LoadedWindow(data, begin, end, end - new, starts)

    def n_left(self) -> int:
        """Return the number of bytes after the window that was returned last. Raises Irregular."""
        loaded = self._coming.result()
        n_bytes = loaded.end - _HEAD
        while pieces := self._body.read(self._size):
            n_bytes += sum(map(len, pieces))
        return n_bytes

    def _load(self, data: bytearray, begins: tuple[bytes, ...]) -> _Loaded:
        pieces = self._body.read(self._size)
        n_bytes = sum(map(len, pieces))
        if _HEAD + n_bytes + len(PAD) > len(data):
            data = self._buffer(n_bytes)
        view, end = memoryview(data), _HEAD
        for piece in pieces:
            view[end : end + len(piece)] = piece
            end += len(piece)
        view[end : end + len(PAD)] = PAD
        return _Loaded(data, end, begins, candidates(data, _HEAD, end, begins))


def candidates(data: bytearray, first: int, end: int, begins: Sequence[bytes]) -> Array:
    """Return the offsets from *first* to *end* at which events may begin: with one of *begins*."""
    found = np.flatnonzero(np.frombuffer(data, "u1")[first:end] == ord("}")) + first
    anywhere: Array = np.ndarray((len(data) - 8,), "<u8", data, strides=(1,))
    words, fits = anywhere[found], np.zeros(len(found), "?")
    for begin in begins:
        bits = np.uint64(int.from_bytes(begin, "little"))
        fits |= (words & np.uint64((1 << 8 * len(begin)) - 1)) == bits
    return found[fits]
