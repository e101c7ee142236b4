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

A run of events is replaced, in what CPython's unpickler builds, by its number and by opcodes that number as
many memo objects as the run did, so that later references stay right::

    4A <number of the run>   4E 94 94 94 ... 94 30        J number   N  MEMOIZE ...  0 (POP)

The modules are the steps: ``opcode_blocks`` removes the frames of the pickle, ``opcode_shapes`` learns and
matches shapes, ``frame_lists`` finds lists of frames, ``decoded`` reads the numbers of a window,
``partial_sums`` adds them up for a first look, this module walks the file and builds the rest, and ``events``
merges runs and dicts into the columns of ``Events``. A second thread loads the next window (``windows``)
while the walk is in this one, reads the numbers of a window while its lists of frames are found, and copies
its columns while the next one is walked; the walk alone decides what is accepted.

Nothing rests on guessing. A run is accepted only if reading opcode by opcode from the start of the file
arrives at its first byte, and each of its bytes is compared with a shape; what it refers to is looked up
among the objects built. If anything is not as torch writes it, ``Irregular`` is raised and the file is read
the slow way, with the same result or the same refusal. A test compares both readers.
"""

import io
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramscope.errors import FormatError
from vramscope.formats._fast_snapshot.decoded import (
    Decoded,
    chains,
    decode,
)
from vramscope.formats._fast_snapshot.frame_lists import FrameLists
from vramscope.formats._fast_snapshot.opcode_blocks import (
    Body,
    Irregular,
    Readable,
)
from vramscope.formats._fast_snapshot.opcode_shapes import (
    Shape,
    Shapes,
)
from vramscope.formats._fast_snapshot.partial_sums import ACTION, PartialSums
from vramscope.formats._fast_snapshot.windows import PAD, Windows, candidates
from vramscope.formats._pickle import PROBLEMS, PlainUnpickler, collector_off, verify
from vramscope.model.partial_curve import Watch

WINDOW = 6 << 20
"""Bytes of a window. The walk of 5 million events took 1.7 s with 6 MiB, and 2.0 with 16. With 2 it took 2.4:
the two threads waited for Python's lock more often than they computed.
"""

_FIRST_BYTES, _GROWTH, _LARGEST_BYTES = 1 << 20, 8, 64 << 20
"""The size of the first array of each kind of column in the arena, and how far the next ones grow.

A column that is merged takes the memory of one that was merged before it, if most of that was one array which
was nearly filled: 8 MB of a million events, 40 MB of 5 million. With arrays of 32 or 128 MB, 5 million events
took 0.4 s of CPU more.
"""

_SHORTEST_RUN = 4
"""The least number of events in a run; fewer are built faster like anything else."""

_TEXT = {0x8C: 1, ord("X"): 4, 0x8D: 8}
NAMES = ("action", "addr", "device_free", "size", "stream", "time_us", "frames", "pool_id")
"""The keys of an event that are read."""

_DEFINITION = re.compile(rb"\x8c[\x04-\x0b](" + "|".join(NAMES).encode() + rb")\x94")
_BEGIN_EVENT = b"}\x94("
_MOST_DEFINITIONS = 64
"""The most definitions of key names; torch writes each once, but functions may have the same names."""


def _sized(opcode: bytes, sizes: Iterable[int]) -> bytes:
    """Return the pattern of a value after its size in one byte."""
    return opcode + rb"(?:" + b"|".join(re.escape(bytes([n])) + b"." * n for n in sizes) + rb")"


_VALUES = (
    rb"j....|h.|K.|M..|J....|"
    + _sized(rb"\x8a", (6, 7, 5, 4, 8, 0, 1, 2, 3, 9))
    + rb"|"
    + _sized(rb"\x8c", range(24))
    + rb"|G........"
)
_TOKEN = re.compile(rb"(?:" + _VALUES + rb"|[\x94u}\]eaNs\x88\x89\x86()])", re.DOTALL)
_TOKENS = re.compile(rb"(?:" + _VALUES + rb"|[\x94u}\]eaNs\x88\x89\x86()]){1,2000}", re.DOTALL)
_OPCODES = frozenset(b"jhKMJ\x8a\x8cG\x94u}]eaNs\x88\x89\x86()")
_WITH_VALUE = re.compile(rb"(?:" + _VALUES + rb")+", re.DOTALL)
_LONGEST_TOKEN = 2 + 255


class EventRun(NamedTuple):
    """Events that follow one another in the file, as columns; a column of zeros is None."""

    first_memo: int
    """The number of memo objects before the run."""
    n_memo: int
    shape: Shape
    """The shape of the first event."""
    action: NDArray[Any]
    """The memo index of each event's action."""
    frames: NDArray[Any]
    """The number of a list in ``FrameLists``; −1 if there is none, −2 − memo index for a reference."""
    pool: NDArray[Any] | None
    """Both halves of the pool's id in one number; −1 − memo index for a reference."""
    numbers: dict[str, NDArray[Any] | None]
    """The other columns; the one that is merged takes them out."""


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A snapshot as far as it was built, and the runs that were left out."""

    whole: Any
    """The object that ``pickle.load`` would return, with the number of a run in place of its events."""
    runs: tuple[EventRun, ...]
    lists: FrameLists
    list_of_memo: NDArray[Any]
    """The number in ``lists`` of each memo index; −1 if it is not a list of frames."""
    objects: Mapping[int, Any]
    """The objects that the runs refer to, by memo index."""
    n_trailing: int
    """The number of bytes after the end of the pickle."""


def packed(file: Readable, window: int = WINDOW, watch: Watch | None = None) -> Packed:
    """Read the snapshot pickled in *file*, *window* bytes at a time; *watch* gets the curve after each one.

    Raises Irregular.
    """
    # glibc returns the free end of its heap to the system and requests it again at each window, unless it has
    # once freed a mapping half as long. This array is such a mapping; nothing writes to it, so it costs
    # nothing.
    np.empty(4 * window, "u1")
    with ThreadPoolExecutor(1) as beside:
        walk = _OpcodeWalk(Body(file), window, watch, beside)
        walk.read()
    try:
        return _built(walk)
    except (FormatError, *PROBLEMS):
        raise Irregular from None


class _OpcodeWalk:
    """Walks the opcodes of a file from the first to the last."""

    def __init__(self, body: Body, window: int, watch: Watch | None, beside: Executor) -> None:
        self._windows, self._watch, self._beside = Windows(body, window, beside), watch, beside
        self._sums = PartialSums() if watch is not None else None
        self._data, self._end, self._at = bytearray(PAD), 0, 0
        self._starts: NDArray[Any] | None = None
        """Offsets in the window at which events may begin; None where it was not known how they begin."""
        self._summed = 0
        """The offset up to which events are in the sums."""
        self._begins: list[bytes] = []
        """The bytes with which the dict of an event may begin."""
        self._stopped = False
        self.shapes, self.lists, self._arena = Shapes(), FrameLists(), _ColumnArena(beside)
        self.n_memo = 0
        self.pieces: list[bytes | EventRun] = []
        """The opcodes to build, and the runs between them."""
        self.opcodes: list[bytes] = []
        """The opcodes to build, without long texts."""
        self.n_trailing = 0

    def read(self) -> None:
        """Read the whole file. Raises Irregular."""
        is_last = False
        while not self._stopped:
            is_last = not self._more()
            self._read_window(is_last)
            self._arena.copy()
            self._sum_kept()
            if self._watch is not None and self._sums is not None:
                self._watch(self._sums.close_window())
            if is_last and not self._stopped:
                raise Irregular
        self._arena.settle()
        self.n_trailing = self._end - self._at + (0 if is_last else self._windows.n_left())
        self._data = bytearray(PAD)

    def _more(self) -> bool:
        """Take the next window, which begins where this one was left; return whether there was more."""
        found = self._windows.after(memoryview(self._data)[self._at : self._end], self._begins)
        self._data, self._end, self._starts = found.data, found.end, found.starts
        self._at = self._summed = found.begin
        return found.n_new > 0

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

    def _take(self, start: NDArray[Any]) -> None:
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
        holds = found.frames[at] >= 0
        self.lists.number((before + counts - 1)[holds], found.frames[at][holds])
        put = self._arena.put
        run = EventRun(
            first_memo=self.n_memo,
            n_memo=int(counts.sum()),
            shape=shapes[found.shape[at.start]],
            action=put("action", found.action[at]),
            frames=put("frames", found.frames[at]),
            pool=put("pool", found.pool[at]) if found.pool[at].any() else None,
            numbers={
                name: put(name, column[at]) if column[at].any() else None
                for name, column in found.numbers.items()
            },
        )
        self._sum_kept()
        self.pieces.append(run)
        self.n_memo += run.n_memo
        self._at = self._summed = int(found.end[at.stop - 1])
        if self._sums is not None:
            self._sums.add_run(found, at)

    def _sum_kept(self) -> None:
        """Add the events that are built one by one to the sums, up to where the walk is."""
        if self._sums is not None and self._summed < self._at:
            self._sums.add_opcodes(self._data[self._summed : self._at], self._summed)
            self._summed = self._at

    def _walk(self, target: int) -> None:
        """Walk opcode by opcode to *target*.

        It stops later if an opcode reaches beyond *target*, and earlier if the window ends.
        """
        while self._at < target and self._step(target):
            pass

    def _step(self, target: int) -> bool:
        """Advance by some opcodes; return whether that was possible."""
        if self._stopped or self._at >= self._end:
            return False
        found = _TOKENS.match(self._data, self._at, target)
        found = found or _TOKEN.match(self._data, self._at, self._end)
        if found:
            self._keep(found.group())
            return True
        opcode = self._data[self._at]
        if opcode == ord("."):
            self._stopped = True
            self._keep(b".")
            return True
        if opcode in _TEXT:
            return self._long_text(opcode)
        if opcode not in _OPCODES or self._end - self._at > _LONGEST_TOKEN:
            raise Irregular
        return False

    def _long_text(self, opcode: int) -> bool:
        begin = self._at + 1 + _TEXT[opcode]
        end = begin + int.from_bytes(self._data[self._at + 1 : begin], "little")
        if end > self._end:
            return False
        self.pieces.append(bytes(self._data[self._at : end]))
        self._at = end
        return True

    def _keep(self, piece: bytes) -> None:
        """Keep opcodes that are to be built."""
        for found in _DEFINITION.finditer(piece):
            self._define(self.n_memo + _n_memoized(piece[: found.start()]), found[1])
        if self._sums is not None:
            for found in ACTION.finditer(piece):
                self._sums.define(self.n_memo + _n_memoized(piece[: found.start()]), found[1])
        self.n_memo += _n_memoized(piece)
        self.pieces.append(piece)
        self.opcodes.append(piece)
        self._at += len(piece)

    def _define(self, memo: int, word: bytes) -> None:
        """Note that *memo* is the index of the string *word*."""
        if len(self.shapes.names) >= _MOST_DEFINITIONS:
            raise Irregular
        self.shapes.names[memo] = word.decode()
        if word == b"action":
            self._begins.append(_BEGIN_EVENT + _get(memo))


def _n_memoized(opcodes: bytes) -> int:
    """Return the number of objects that *opcodes* add to the memo."""
    return _WITH_VALUE.sub(b"", opcodes).count(b"\x94")


class _ColumnArena:
    """Keeps short columns in long arrays, for which the system maps memory by 2 MiB instead of 4 KiB.

    The columns of a window are copied while the next one is read: fresh memory costs a tenth of the time.
    Each kind of column has arrays of its own, so that their memory is free again once that column is merged.
    """

    __slots__ = ("_beside", "_copied", "_pending", "_rooms")

    def __init__(self, beside: Executor) -> None:
        self._rooms: dict[str, tuple[NDArray[Any], int]] = {}
        """The array of each kind that is being filled, and up to which byte it is."""
        self._beside = beside
        self._pending: list[tuple[NDArray[Any], NDArray[Any]]] = []
        """The columns in the arena that have no content yet, each with its content."""
        self._copied: Future[None] | None = None

    def put(self, kind: str, column: NDArray[Any]) -> NDArray[Any]:
        """Return the place of *column* in the arena; it is filled by ``settle``."""
        room, at = self._rooms.get(kind, (None, 0))
        if room is None or at + column.nbytes > len(room):
            size = _FIRST_BYTES if room is None else min(_GROWTH * len(room), _LARGEST_BYTES)
            room, at = np.empty(max(size, column.nbytes), "u1"), 0
        found = room[at : at + column.nbytes].view(column.dtype)
        self._rooms[kind] = room, at + -(-column.nbytes // 8) * 8
        self._pending.append((found, column))
        return found

    def copy(self) -> None:
        """Begin to fill the places of the columns so far; they must not be written to any more."""
        if self._copied is not None:
            self._copied.result()
        self._copied = self._beside.submit(_copy, self._pending)
        self._pending = []

    def settle(self) -> None:
        """Wait until the columns are filled for which ``copy`` was called; there are no more."""
        if self._copied is not None:
            self._copied.result()
        self._rooms.clear()


def _copy(columns: list[tuple[NDArray[Any], NDArray[Any]]]) -> None:
    for to, column in columns:
        to[:] = column


def _get(memo: int) -> bytes:
    """Return the opcode that pushes an object of the memo."""
    return b"h" + bytes([memo]) if memo < 256 else b"j" + memo.to_bytes(4, "little")


def _built(walk: _OpcodeWalk) -> Packed:
    """Build the kept opcodes and the objects that the runs refer to."""
    runs = [piece for piece in walk.pieces if isinstance(piece, EventRun)]
    kept = b"".join(piece for piece in walk.pieces if isinstance(piece, bytes))
    if verify(kept) != len(kept):
        raise Irregular
    list_of_memo = walk.lists.by_memo(walk.n_memo)
    wanted = _wanted(walk, runs, list_of_memo)
    needed = _needed(walk.opcodes, runs, list_of_memo)
    opcodes = walk.lists.opcodes()
    pieces, n_runs = [], 0
    for piece in walk.pieces:
        if isinstance(piece, EventRun):
            pieces.append(
                b"J" + n_runs.to_bytes(4, "little") + _numbered(piece, needed, list_of_memo, opcodes)
            )
            n_runs += 1
        else:
            pieces.append(piece)
    walk.pieces.clear()
    pieces[-1] = b"](" + b"".join(map(_get, wanted)) + b"e\x86."
    header = b"\x80\x04\x95" + sum(map(len, pieces)).to_bytes(8, "little")
    body = b"".join([header, *pieces])
    del pieces, kept
    with collector_off():
        whole, objects = PlainUnpickler(io.BytesIO(body)).load()
    found = Packed(
        whole, tuple(runs), walk.lists, list_of_memo, dict(zip(wanted, objects, strict=True)), walk.n_trailing
    )
    _check_keys(found, walk.shapes)
    return found


def _wanted(walk: _OpcodeWalk, runs: list[EventRun], list_of_memo: NDArray[Any]) -> list[int]:
    """Return the memo indices that runs refer to, without the lists that are inside runs."""
    found = {key for shape in walk.shapes.known for key in shape.keys if key < walk.n_memo}
    is_action = np.zeros(walk.n_memo, "?")
    for run in runs:
        is_action[run.action] = True
        lists = -2 - run.frames[run.frames < -1]
        found.update(np.unique(lists[list_of_memo[lists] < 0]).tolist())
        if run.pool is not None:
            found.update(np.unique(-1 - run.pool[run.pool < 0]).tolist())
    for frames in walk.lists.frames:
        found.update(memo for memo in frames if memo < walk.n_memo)
    found.update(np.flatnonzero(is_action).tolist())
    return sorted(found)


def _needed(pieces: list[bytes], runs: list[EventRun], list_of_memo: NDArray[Any]) -> frozenset[int]:
    """Return the memo indices of lists inside runs that kept opcodes refer to.

    Raises Irregular if they refer to anything else inside a run.
    """
    if not runs:
        return frozenset()
    found = {memo for piece in pieces for memo in _references(piece)}
    first = np.array([run.first_memo for run in runs])
    last = first + np.array([run.n_memo for run in runs])
    memo = np.array(sorted(found), "i8")
    row = np.searchsorted(first, memo, side="right") - 1
    inside = memo[(row >= 0) & (memo < last[row])]
    if (list_of_memo[inside] < 0).any():
        raise Irregular
    return frozenset(inside.tolist())


_ONE_VALUE = re.compile(_VALUES, re.DOTALL)


def _references(opcodes: bytes) -> set[int]:
    """Return the memo indices that *opcodes* refer to."""
    values = _ONE_VALUE.findall(opcodes)
    return {int.from_bytes(value[1:], "little") for value in values if value[0] in b"jh"}


def _numbered(
    run: EventRun, needed: frozenset[int], list_of_memo: NDArray[Any], opcodes: list[bytes]
) -> bytes:
    """Return opcodes that number as many objects as *run* does, all None but the lists that are needed."""
    found, at, end = [], run.first_memo, run.first_memo + run.n_memo
    for memo in sorted(memo for memo in needed if at <= memo < end):
        found += [_nothing(memo - at), b"]\x94", opcodes[list_of_memo[memo]], b"0"]
        at = memo + 1
    return b"".join([*found, _nothing(end - at)])


def _nothing(n: int) -> bytes:
    return b"N" + b"\x94" * n + b"0" if n else b""


def _check_keys(found: Packed, shapes: Shapes) -> None:
    """Raise Irregular unless the keys of events are the strings that they were assumed to be."""
    for shape in shapes.known:
        if not shape.n_found:
            continue
        keys = [found.objects.get(key) for key in shape.keys]
        taken_for = [shapes.names.get(key, "") for key in shape.keys]
        if any(type(key) is not str for key in keys) or len(set(keys)) < len(keys):
            raise Irregular
        if any(key != name and (name or key in NAMES) for key, name in zip(keys, taken_for, strict=True)):
            raise Irregular
