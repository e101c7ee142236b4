"""Builds what lies between the runs of events, as if the runs had never been in the file."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.errors import FormatError
from vramscope.formats._fast_snapshot.frame_lists import FrameLists
from vramscope.formats._fast_snapshot.opcode_blocks import Irregular
from vramscope.formats._fast_snapshot.opcodes import get, memo_indices, references, write_memo_indices
from vramscope.formats._fast_snapshot.runs import EventRun
from vramscope.formats._pickle import PROBLEMS, PlainUnpickler, verify
from vramscope.malloc import collector_off


class LongText(bytes):
    """A string with its opcode, too long for the pattern of opcodes; nothing in it is a reference."""

    __slots__ = ()


Piece = bytes | EventRun
"""Opcodes that are built, or a run of events between them."""


def built(pieces: Sequence[Piece], lists: FrameLists, wanted: Sequence[int]) -> tuple[Any, Mapping[int, Any]]:
    """Build the opcodes, with the number of a run in place of its events.

    The last of *pieces* is STOP; *lists* are the lists of frames inside the runs, *wanted* memo indices.
    Returns the object that the file holds, and those that are wanted, by memo index. Raises Irregular if the
    opcodes are not plain data, or refer to anything inside a run but its lists of frames.
    """
    kept, at, cuts = _kept(pieces)
    try:
        if verify(bytes(kept)) != len(kept):
            raise Irregular
        memo = memo_indices(kept, at)
        numbers = _MemoNumbers([piece for piece in pieces if isinstance(piece, EventRun)], memo)
        write_memo_indices(kept, at, numbers.of(memo))
        body = _body(kept[:-1], cuts, numbers, lists)
        ends = b"](" + b"".join(map(get, numbers.of(np.array(wanted, "i8")).tolist())) + b"e\x86."
        with collector_off():
            opcodes = body + ends
            framed = b"\x80\x04\x95" + len(opcodes).to_bytes(8, "little") + opcodes
            whole, objects = PlainUnpickler(io.BytesIO(framed)).load()
    except (FormatError, *PROBLEMS):
        raise Irregular from None
    return whole, dict(zip(wanted, objects, strict=True))


def _kept(pieces: Sequence[Piece]) -> tuple[bytearray, NDArray[np.int64], list[int]]:
    kept, at, cuts = bytearray(), [], []
    for piece in pieces:
        if isinstance(piece, EventRun):
            cuts.append(len(kept))
            continue
        if not isinstance(piece, LongText):
            at += [len(kept) + offset for offset in references(piece)]
        kept += piece
    return kept, np.array(at, "i8"), cuts


class _MemoNumbers:
    """Numbers the objects that are built, as the unpickler does: it counts only what it sees.

    Of what is in the runs it sees the lists of frames that the opcodes refer to, each at the place of its
    run. To number all objects of the runs took 130 MB for a file of 5 million events.
    """

    def __init__(self, runs: Sequence[EventRun], used: NDArray[np.int64]) -> None:
        """*used* are the memo indices that the opcodes refer to."""
        # A run of nothing before the first object saves the question whether any run precedes one.
        sizes = np.array([0, *(run.n_memo for run in runs)], "i8")
        self._first = np.array([-1, *(run.first_memo for run in runs)], "i8")
        self._end = self._first + sizes
        self._n_before = np.cumsum(sizes) - sizes
        _, is_inside = self._run_of(used)
        self.needed = np.unique(used[is_inside])
        """The memo indices of the lists inside runs that are built, in order."""

    def _run_of(self, memo: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the last run that begins at or before each object, and whether it contains it."""
        row = np.searchsorted(self._first, memo, side="right") - 1
        return row, memo < self._end[row]

    def of(self, memo: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the unpickler's number of each object. Raises Irregular if one is not built."""
        row, is_inside = self._run_of(memo)
        rank = np.searchsorted(self.needed, memo)
        if not np.isin(memo[is_inside], self.needed).all():
            raise Irregular
        sizes = self._end[row] - self._first[row]
        others = np.where(is_inside, self._first[row], memo - sizes) - self._n_before[row]
        return others + rank

    def needed_of(self, i: int) -> slice:
        return slice(*np.searchsorted(self.needed, (self._first[i + 1], self._end[i + 1])))


def _body(kept: bytearray, cuts: Sequence[int], numbers: _MemoNumbers, lists: FrameLists) -> bytes:
    """Return the opcodes with the number of each run, and the lists that are needed of it, at its place."""
    number_of = lists.numbers_of(numbers.needed)
    if (number_of < 0).any():
        raise Irregular
    contents = lists.opcodes()
    found: list[bytes | bytearray] = []
    begin = 0
    for i, cut in enumerate(cuts):
        found += [kept[begin:cut], b"J", i.to_bytes(4, "little")]
        for number in number_of[numbers.needed_of(i)].tolist():
            opcodes = bytearray(contents[number])
            at = np.array(references(bytes(opcodes)), "i8")
            write_memo_indices(opcodes, at, numbers.of(memo_indices(opcodes, at)))
            found += [b"]\x94", opcodes, b"0"]
        begin = cut
    return b"".join([*found, kept[begin:]])
