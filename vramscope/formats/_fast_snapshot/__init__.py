r"""Fast reader of pickled snapshots: events become columns without a dict per event.

A pickled snapshot of a million events is 150 MB of opcodes, which CPython turns into a million dicts and ten
million references. This reader walks the file once, in windows of some megabytes. Runs of events of a known
shape go straight into columns. Everything else, usually one byte in a hundred, is verified and built by
``formats/_pickle.py``, with the number of a run in place of the run's events.

What one event looks like, in pickle protocol 4 or 5 (one line per item, bytes in hex)::

    7D 94 28            }  MEMOIZE  (       a new dict, numbered in the memo; its items follow
    68 05   68 06       h 5     h 6         "action": a reference to the string "alloc"
    68 07   8A 06 ....  h 7     LONG1 6     "addr": 6 bytes, little-endian
    68 09   4A ....     h 9     J           "size": 4 bytes
    68 0A   4B 00       h 10    K           "stream": 1 byte
    68 0B   5D 94       h 11    ]  MEMOIZE  "frames": a new list, or a reference to an earlier one
        28 68 20 6A ....  65    (  h  j  e  the list's contents: references to the dicts of frames
    75                  u                   the end of the dict

``h`` (1 byte) and ``j`` (4 bytes) refer to an object by its number in the memo. The keys are strings that the
first event of the file defines. Nearly all events of a file have one of some thirty *shapes*: the same
opcodes at the same places, with other numbers in between. A shape is therefore two rows of bytes::

    bytes   7D 94 28 68 05 68 00 68 07 8A 06 00 00 00 00 00 00 68 09 4A 00 00 00 00 ...
    mask    FF FF FF FF FF FF 00 FF FF FF FF 00 00 00 00 00 80 FF FF FF 00 00 00 80 ...

NumPy compares thousands of places with ``(data & mask) == bytes`` at once. Where the mask is 0 stands a
number, at a known offset and width; ``80`` demands only that a signed number is not negative. The variable
part, the list of frames, stands last in an event and is looked up by its bytes, as nearly every list repeats
an earlier one.

A run of events is replaced, in what CPython's unpickler builds, by its number: ``4A <number of the run>``.
The objects of the run are then missing in the memo, so the references that follow are numbered again.

The modules are the steps: ``opcode_blocks`` removes the frames of the pickle, ``opcode_shapes`` learns and
matches shapes, ``frame_lists`` finds lists of frames, ``decoded`` reads the numbers of a window, this module
walks the file, ``runs`` collects the columns of the events, ``between_runs`` builds the rest, and ``events``
joins runs and dicts to ``Events``. A second thread loads the next window (``windows``) while the walk is in
this one, reads the numbers of a window while its lists of frames are found, and copies its columns while the
next one is walked; the walk alone decides what is accepted.

Nothing rests on guessing. A run is accepted only if reading opcode by opcode from the start of the file
arrives at its first byte, and each of its bytes is compared with a shape; what it refers to is looked up
among the objects built. If anything is not as torch writes it, ``Irregular`` is raised and the file is read
the slow way, with the same result or the same refusal. A test compares both readers.
"""

import re
from collections.abc import Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from vramscope.formats import Watch
from vramscope.formats._fast_snapshot.between_runs import LongText, Piece, built
from vramscope.formats._fast_snapshot.decoded import Decoded, chains, decode
from vramscope.formats._fast_snapshot.frame_lists import FrameLists
from vramscope.formats._fast_snapshot.opcode_blocks import Body, Irregular
from vramscope.formats._fast_snapshot.opcode_shapes import Shapes
from vramscope.formats._fast_snapshot.opcodes import (
    FIRST_BYTES,
    LONGEST,
    OPCODE,
    OPCODES,
    TEXT,
    get,
    n_memoized,
)
from vramscope.formats._fast_snapshot.runs import ActionNumbers, EventRun, RunColumns
from vramscope.formats._fast_snapshot.windows import PAD, Windows, candidates
from vramscope.formats._file import Stream
from vramscope.model.table import Array

WINDOW = 6 << 20
"""Bytes of a window. The walk of 5 million events took 1.7 s with 6 MiB, and 2.0 with 16. With 2 it took 2.4:
the two threads waited for Python's lock more often than they computed.
"""

_SHORTEST_RUN = 4
"""The least number of events in a run; fewer are built faster like anything else."""

NAMES = ("action", "addr", "device_free", "size", "stream", "time_us", "frames", "pool_id", "user_metadata")
"""The keys of an event that are read."""

_DEFINITION = re.compile(rb"\x8c[\x04-\x0d](" + "|".join(NAMES).encode() + rb")\x94")
_EMPTY = re.compile(rb"\x8c\x00\x94")
_BEGIN_EVENT = b"}\x94("
_MOST_DEFINITIONS = 64
"""The most definitions of key names; torch writes each once, but functions may have the same names."""


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A snapshot as far as it was built, and the runs that were left out."""

    whole: Any
    """The object that ``pickle.load`` would return, with the number of a run in place of its events."""
    runs: tuple[EventRun, ...]
    columns: RunColumns
    """The events of the runs.

    The stack of an event is the number of a list in ``lists``; −1 if there is none, −2 − memo index for one
    of ``objects``. A pool is both halves of its id in one number; −1 − memo index for one of ``objects``.
    """
    actions: tuple[int, ...]
    """The memo index of each action in the columns."""
    lists: FrameLists
    objects: Mapping[int, Any]
    """The objects that the runs refer to, by memo index."""
    n_trailing: int
    """The number of bytes after the end of the pickle."""


def packed(file: Stream, window: int = WINDOW, watch: Watch | None = None, n_bytes: int = 0) -> Packed:
    """Read the snapshot pickled in *file* without an object for each event.

    *window* are the bytes to read at a time, and *watch* is called after each; memory is reserved for
    *n_bytes*. Raises Irregular if the file is not as torch writes it, FormatError if a time is beyond what
    torch writes.
    """
    # glibc returns the free end of its heap to the system and requests it again at each window, unless it has
    # once freed a mapping half as long. This array is such a mapping; nothing writes to it, so it costs
    # nothing.
    np.empty(4 * window, "u1")
    with ThreadPoolExecutor(1) as beside:
        walk = _OpcodeWalk(Windows(Body(file), window, beside), n_bytes, watch, beside)
        walk.read()
    return _built(walk)


class _OpcodeWalk:
    def __init__(self, windows: Windows, n_bytes: int, watch: Watch | None, beside: Executor) -> None:
        self._windows, self._watch, self._beside = windows, watch, beside
        self._n_unread, self._run_bytes = n_bytes, 0
        """Bytes of the file that are not read yet, and bytes of the runs so far."""
        self._data, self._end, self._at = bytearray(PAD), 0, 0
        self._starts: Array | None = None
        """Offsets in the window at which events may begin; None where it was not known how they begin."""
        self._begins: list[bytes] = []
        """The bytes with which the dict of an event may begin."""
        self._stopped = False
        self.shapes, self.lists = Shapes(), FrameLists()
        self.columns, self.actions = RunColumns(beside), ActionNumbers()
        self.n_memo = 0
        self.pieces: list[Piece] = []
        self.n_trailing = 0

    def read(self) -> None:
        """Read the whole file. Raises Irregular."""
        is_last = False
        while not self._stopped:
            is_last = not self._more()
            self._read_window(is_last)
            self.columns.copy(self._n_expected())
            if self._watch is not None:
                self._watch()
            if is_last and not self._stopped:
                raise Irregular
        self.columns.settle()
        self.n_trailing = self._end - self._at + (0 if is_last else self._windows.n_left())
        self._data = bytearray(PAD)

    def _more(self) -> bool:
        """Take the next window, which begins where this one was left; return whether there was more."""
        found = self._windows.after(memoryview(self._data)[self._at : self._end], self._begins)
        self._data, self._end, self._starts = found.data, found.end, found.starts
        self._at = found.begin
        self._n_unread -= found.n_new
        return found.n_new > 0

    def _n_expected(self) -> int:
        """Return how many events the file has if the rest of it is as the runs so far are.

        The size of a compressed file says little, so twice the events so far are the least.
        """
        unread = max(self._n_unread, self._run_bytes)
        return self.columns.n_rows * (self._run_bytes + unread) // max(self._run_bytes, 1)

    def _read_window(self, is_last: bool) -> None:
        while not self._begins and self._step(self._end):
            pass
        start = self._starts
        if start is None:
            start = candidates(self._data, self._at, self._end, self._begins)
        if len(start):
            self._walk(int(start[0]))  # the first event defines the key strings of all
            self._take(start)
        waits = bool(len(start)) and not is_last and self._at <= start[-1]
        self._walk(int(start[-1]) if waits else self._end)

    def _take(self, start: Array) -> None:
        """Match the events at *start* and append them run by run."""
        rows = self.shapes.match(self._data, start, self.n_memo)
        found = decode(self._data, self._end, rows, (self.shapes, self.lists), self._beside)
        for first, last in chains(found, self._data):
            begin = int(start[first])
            if last - first + 1 >= _SHORTEST_RUN and begin >= self._at:
                self._walk(begin)
                if self._at == begin and not self._stopped:
                    self._append(found, slice(first, last + 1))

    def _append(self, found: Decoded, at: slice) -> None:
        """Append the run *at*, whose first byte the walk has reached."""
        counts, shapes = found.n_memo[at], self.shapes.known
        before = np.cumsum(counts) - counts + self.n_memo
        keys = [max(shapes[shape].keys) for shape in np.flatnonzero(np.bincount(found.shape[at])).tolist()]
        if (found.highest[at] >= before).any() or max(keys) >= self.n_memo:
            raise Irregular  # refers to what comes later
        run = EventRun(
            first_memo=self.n_memo,
            n_memo=int(counts.sum()),
            shape=shapes[found.shape[at.start]],
            first_row=self.columns.n_rows,
            n_rows=len(counts),
        )
        given = {name: column[at] for name, column in found.numbers.items()}
        stack = self._stacks(run, found.frames[at], before + counts - 1)
        self.columns.append(
            given
            | {
                "action": self.actions.of(found.action[at]),
                "stack": stack,
                "pool": found.pool[at],
                "text": found.text[at],
            }
        )
        self.pieces.append(run)
        self.n_memo += run.n_memo
        self._at = int(found.end[at.stop - 1])
        self._run_bytes += self._at - int(found.start[at.start])

    def _stacks(self, run: EventRun, frames: Array, last_memo: Array) -> Array:
        """Return the stacks of a run's events, with the references to lists inside the run looked up.

        Nearly all references are such: to the list of the event before. *last_memo* is the memo index of the
        last object of each event, which is its list if it contains one.
        """
        holds = frames >= 0
        memo, held = last_memo[holds], frames[holds]
        self.lists.number(memo, held)
        number = np.full(run.n_memo, -1, "i4")
        number[memo - run.first_memo] = held
        refers = np.flatnonzero(frames < -1)
        place = -2 - frames[refers] - run.first_memo
        refers, place = refers[place >= 0], place[place >= 0]
        found, known = np.array(frames), number[place]
        found[refers[known >= 0]] = known[known >= 0]
        return found

    def _walk(self, target: int) -> None:
        """Walk opcode by opcode to *target*.

        It stops later if an opcode reaches beyond *target*, and earlier if the window ends.
        """
        while self._at < target and self._step(target):
            pass

    def _step(self, target: int) -> bool:
        if self._stopped or self._at >= self._end:
            return False
        found = OPCODES.match(self._data, self._at, target)
        found = found or OPCODE.match(self._data, self._at, self._end)
        if found:
            self._keep(found.group())
            return True
        opcode = self._data[self._at]
        if opcode == ord("."):
            self._stopped = True
            self._keep(b".")
            return True
        if opcode in TEXT:
            return self._long_text(opcode)
        if opcode not in FIRST_BYTES or self._end - self._at > LONGEST:
            raise Irregular
        return False

    def _long_text(self, opcode: int) -> bool:
        begin = self._at + 1 + TEXT[opcode]
        end = begin + int.from_bytes(self._data[self._at + 1 : begin], "little")
        if end > self._end:
            return False
        self.pieces.append(LongText(self._data[self._at : end]))
        self._at = end
        return True

    def _keep(self, piece: bytes) -> None:
        """Keep opcodes that are to be built."""
        for found in _EMPTY.finditer(piece):
            self.shapes.empties.add(self.n_memo + n_memoized(piece[: found.start()]))
        for found in _DEFINITION.finditer(piece):
            self._define(self.n_memo + n_memoized(piece[: found.start()]), found[1])
        self.n_memo += n_memoized(piece)
        self.pieces.append(piece)
        self._at += len(piece)

    def _define(self, memo: int, word: bytes) -> None:
        if len(self.shapes.names) >= _MOST_DEFINITIONS:
            raise Irregular
        self.shapes.names[memo] = word.decode()
        if word == b"action":
            self._begins.append(_BEGIN_EVENT + get(memo))


def _built(walk: _OpcodeWalk) -> Packed:
    """Build the kept opcodes and the objects that the runs refer to. Raises Irregular."""
    runs = tuple(piece for piece in walk.pieces if isinstance(piece, EventRun))
    wanted = _wanted(walk)
    whole, objects = built(walk.pieces, walk.lists, wanted)
    found = Packed(
        whole=whole,
        runs=runs,
        columns=walk.columns,
        actions=tuple(walk.actions.memos),
        lists=walk.lists,
        objects=objects,
        n_trailing=walk.n_trailing,
    )
    _check_keys(found, walk.shapes)
    return found


def _wanted(walk: _OpcodeWalk) -> list[int]:
    """Return the memo indices of the objects that runs refer to; look up the lists that are inside runs."""
    used = [shape for shape in walk.shapes.known if shape.n_found]
    found = {key for shape in used for key in (*shape.keys, *shape.empties) if key < walk.n_memo}
    found.update(walk.actions.memos)
    for frames in walk.lists.frames:
        found.update(memo for memo in frames if memo < walk.n_memo)
    rows = slice(0, walk.columns.n_rows)
    stack, pool = walk.columns.column("stack", rows), walk.columns.column("pool", rows)
    refers = np.flatnonzero(stack < -1)
    memo = -2 - stack[refers]
    number = walk.lists.numbers_of(memo)
    stack[refers[number >= 0]] = number[number >= 0]
    found.update(np.unique(memo[number < 0]).tolist())
    if not walk.columns.is_zero("text"):
        found.update((np.unique(walk.columns.column("text", rows)) - 1).tolist())
        found.discard(-1)
    if not walk.columns.is_zero("pool"):
        found.update(np.unique(-1 - pool[pool < 0]).tolist())
    return sorted(found)


def _check_keys(found: Packed, shapes: Shapes) -> None:
    """Raise Irregular unless the keys of events are the strings that they were assumed to be."""
    for shape in shapes.known:
        if not shape.n_found:
            continue
        keys = [found.objects.get(key) for key in shape.keys]
        taken_for = [shapes.names.get(key, "") for key in shape.keys]
        if any(type(key) is not str for key in keys) or len(set(keys)) < len(keys):
            raise Irregular
        if any(found.objects.get(memo) != "" for memo in shape.empties):
            raise Irregular  # no empty text, but letters that look like one
        if any(key != name and (name or key in NAMES) for key, name in zip(keys, taken_for, strict=True)):
            raise Irregular
