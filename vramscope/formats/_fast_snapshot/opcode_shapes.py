"""Learns and matches shapes: the few sequences of opcodes that a snapshot's events consist of.

One program writes all events of a file, so nearly all of them have one of some thirty *shapes*: the same
opcodes at the same places, with different numbers. A shape is learned by reading one event opcode by opcode;
NumPy then compares thousands of others with it at once, byte by byte.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from vramscope.model.table import Array, stretches

LONGEST = 400
"""The longest event in bytes that is compared; a longer one is built like anything else."""

_FEW_ROWS = 2048
"""Rows that are turned into columns at a time, in the processor's cache: of 5 million events, 0.09 s instead
of 0.24.
"""
_MOST_SHAPES = 200
_MOST_ATTEMPTS = 40
"""The most events of one window from which learning a shape is tried."""

_GET = {ord("h"): 1, ord("j"): 4}
_INT = {ord("K"): 1, ord("M"): 2, ord("J"): 4}
_LONG1, _TEXT, _MEMOIZE, _TUPLE2 = 0x8A, 0x8C, 0x94, 0x86
_CONSTANT = frozenset(b"N\x88\x89")
_WHOLE, _NOT_NEGATIVE, _ASCII = 0xFF, 0x80, 0x80


class Value(NamedTuple):
    """The place of a number in an event."""

    offset: int
    width: int
    """The width in bytes, little-endian; 0 for a value that does not exist."""
    is_get: bool = False
    """Whether it is a reference: the memo index of an earlier object."""


@dataclass(slots=True, eq=False)
class Shape:
    """One sequence of opcodes that many events share."""

    size: int
    """The size in bytes, only up to the contents of the list of frames if the event contains it."""
    is_open: bool
    """Whether the event contains its list of frames."""
    keys: tuple[int, ...]
    """The memo indices of the dict's keys."""
    values: dict[str, Value]
    """The places of the values that are read, by key."""
    gets: tuple[Value, ...]
    """The places of all references."""
    text: int
    """1 + the memo index of the program's text; 0 where it has none."""
    empties: tuple[int, ...]
    """The memo indices of what stands for an empty text of the program."""
    n_memo: int
    """The number of memo objects that the event defines."""
    mask: Array = field(repr=False)
    """The bits that all events of the shape share, in words of 8 bytes."""
    bits: Array = field(repr=False)
    """The values of these bits, in words of 8 bytes."""
    n_found: int = 0


class _Learner:
    def __init__(self, data: bytes | bytearray, start: int, shapes: "Shapes", n_known: int) -> None:
        self.data, self.at, self.shapes, self.n_known = data, start, shapes, n_known
        self.bits, self.mask = bytearray(), bytearray()
        self.keys: list[int] = []
        self.values: dict[str, Value] = {}
        self.gets: list[Value] = []
        self.empties: list[int] = []
        self.text = 0
        self.n_memo = 1

    def shape(self) -> Shape | None:
        self._literal(3)  # }, MEMOIZE, (
        is_open = False
        while not is_open and self.data[self.at] != ord("u"):
            opcode = self.data[self.at]
            if opcode not in _GET or len(self.bits) > LONGEST:
                return None
            key = int.from_bytes(self.data[self.at + 1 : self.at + 1 + _GET[opcode]], "little")
            if key >= self.n_known:
                return None  # a key that is not defined yet
            self.keys.append(key)
            self._literal(1 + _GET[opcode])
            name = self.shapes.names.get(key, "")
            if name == "frames" and self.data[self.at : self.at + 2] == b"]\x94":
                self._memoized(2)
                is_open = True
            elif not (self._own_text() if name == "user_metadata" else self._value(name)):
                return None
        if not is_open:
            self._literal(1)
        return self._made(is_open) if self._is_event() else None

    def _is_event(self) -> bool:
        """Return whether the keys differ and the values are of the kinds that torch writes."""
        kinds = {name: value.is_get for name, value in self.values.items()}
        return (
            len(set(self.keys)) == len(self.keys)
            and kinds.pop("action", False)
            and kinds.pop("frames", True)
            and "device_free" not in kinds
            and (kinds.get("pool_id", True) or "pool_id[1]" in kinds)
            and not any(is_get for name, is_get in kinds.items() if name != "pool_id")
            and len(self.bits) <= LONGEST
        )

    def _value(self, name: str) -> bool:
        opcode = self.data[self.at]
        if opcode in _GET:
            self._literal(1)
            found = self._wild(_GET[opcode], is_get=True)
            self.gets.append(found)
        elif opcode in _INT or opcode == _LONG1:
            found = self._integer()
            if self.data[self.at] in _INT:
                second = self._integer()
                return self._pair(name, found, second)
        elif opcode == _TEXT:
            return not name and self._text()
        else:
            self._literal(1)
            return not name and opcode in _CONSTANT
        if name:
            self.values[name] = found
        return found.width > 0

    def _own_text(self) -> bool:
        """Read the program's text if it is a reference; an event that defines one is built, so it is kept."""
        width = _GET.get(self.data[self.at], 0)
        memo = int.from_bytes(self.data[self.at + 1 : self.at + 1 + width], "little")
        self._literal(1 + width)
        if memo in self.shapes.empties:
            self.empties.append(memo)
        else:
            self.text = memo + 1
        return width > 0 and memo < self.n_known

    def _integer(self) -> Value:
        opcode = self.data[self.at]
        width = _INT.get(opcode, self.data[self.at + 1] if opcode == _LONG1 else 0)
        self._literal(2 if opcode == _LONG1 else 1)
        if width > 8:
            return Value(0, 0)
        value = self._wild(width)
        if width and opcode not in b"KM":
            self.mask[-1] = _NOT_NEGATIVE
        return value

    def _pair(self, name: str, first: Value, second: Value) -> bool:
        """Read a pool's id that is written as a tuple of two integers."""
        if name != "pool_id" or self.data[self.at : self.at + 2] != b"\x86\x94":
            return False
        self._memoized(2)
        self.values["pool_id"] = first
        self.values["pool_id[1]"] = second
        return first.width in (1, 2, 4) and second.width in (1, 2, 4)

    def _text(self) -> bool:
        """Read a string of ASCII; other strings would have to be checked to be UTF-8."""
        size = self.data[self.at + 1]
        self._literal(2)
        start = len(self.mask)
        self._wild(size)
        self.mask[start:] = bytes([_ASCII]) * size
        is_whole = self.data[self.at] == _MEMOIZE and len(self.bits) <= LONGEST
        self._memoized(1)
        return is_whole

    def _literal(self, size: int) -> None:
        self.bits += self.data[self.at : self.at + size]
        self.mask += bytes([_WHOLE]) * size
        self.at += size

    def _memoized(self, size: int) -> None:
        self._literal(size)
        self.n_memo += 1

    def _wild(self, width: int, *, is_get: bool = False) -> Value:
        value = Value(len(self.bits), width, is_get)
        self.bits += bytes(width)
        self.mask += bytes(width)
        self.at += width
        return value

    def _made(self, is_open: bool) -> Shape:
        size = len(self.bits)
        padding = bytes(-size % 8)
        return Shape(
            size=size,
            is_open=is_open,
            keys=tuple(self.keys),
            values=self.values,
            gets=tuple(self.gets),
            text=self.text,
            empties=tuple(self.empties),
            n_memo=self.n_memo,
            mask=np.frombuffer(bytes(self.mask) + padding, "<u8"),
            bits=np.frombuffer(bytes(self.bits) + padding, "<u8"),
        )


@dataclass(slots=True, eq=False)
class EventCandidates:
    """The places where an event may begin, and their bytes."""

    start: Array
    shape: Array
    """The index of the shape; −1 if none fits."""
    words: Array = field(repr=False)
    """The bytes at each place, a column per 8 bytes, so that many events are compared at once."""

    def numbers(self, offset: int, width: int) -> Array:
        """Return the *width* bytes at *offset* from each place; the bits above them are undefined."""
        at, skipped = divmod(offset, 8)
        found: Array = self.words[at] >> np.uint64(8 * skipped)
        if skipped + width > 8:
            found |= self.words[at + 1] << np.uint64(64 - 8 * skipped)
        return found


class Shapes:
    """The shapes learned from one file."""

    def __init__(self) -> None:
        self.known: list[Shape] = []
        self.names: dict[int, str] = {}
        """The strings that are keys of events, by memo index."""
        self.empties: set[int] = set()
        """The memo indices of empty strings."""
        self._order: list[int] = []

    def match(self, data: bytes | bytearray, start: Array, n_known: int) -> EventCandidates:
        """Return the shapes of the events that begin at *start* in *data*.

        *data* must reach ``LONGEST`` + 8 bytes further. *n_known* is the number of memo objects so far: the
        keys of new shapes must be among them.
        """
        width = max((len(shape.mask) * 8 for shape in self.known), default=96) + 8
        rows = self._rows(data, start, width)
        self._order.sort(key=lambda at: -self.known[at].n_found)
        rest = np.arange(len(start))
        for at in self._order:
            rest = self._mark(at, rows, rest)
            if not len(rest):
                return rows
        for _ in range(_MOST_ATTEMPTS):
            if not len(rest) or len(self.known) >= _MOST_SHAPES:
                break
            shape = _Learner(data, int(start[rest[0]]), self, n_known).shape()
            if shape is None:
                rest = rest[1:]
                continue
            self.known.append(shape)
            self._order.append(len(self.known) - 1)
            if len(shape.mask) * 8 + 8 > width:
                return self.match(data, start, n_known)
            rest = self._mark(len(self.known) - 1, rows, rest)
        return rows

    @staticmethod
    def _rows(data: bytes | bytearray, start: Array, width: int) -> EventCandidates:
        anywhere: Array = np.ndarray((len(data) - width,), f"V{width}", data, strides=(1,))
        words = np.empty((width // 8, len(start)), "<u8")
        for at in stretches(len(start), _FEW_ROWS):
            words[:, at] = anywhere[start[at]].view("<u8").reshape(-1, width // 8).T
        return EventCandidates(start, np.full(len(start), -1, "i2"), words)

    def _mark(self, at: int, rows: EventCandidates, rest: Array) -> Array:
        """Mark the rows of *rest* that have the shape *at*; return the others."""
        shape = self.known[at]
        found = rest
        for i in np.flatnonzero(shape.mask)[::-1].tolist():  # the ends differ most
            word = rows.words[i] if len(found) == len(rows.start) else rows.words[i].take(found)
            is_same = (word & shape.mask[i]) == shape.bits[i]
            if not is_same.all():
                found = found[is_same]
            if not len(found):
                return rest
        rows.shape[found] = at
        shape.n_found += len(found)
        return rest[rows.shape[rest] < 0]
