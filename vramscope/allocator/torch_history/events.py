"""The entries of a device's trace as columns, before they are checked and ordered.

Files and the model meet here: a list of dicts becomes columns; a reader that never creates the dicts
(``formats/_fast_snapshot/__init__.py``) fills the same columns.
An untrusted file is checked on the way, and an error names its place in it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from vramscope.errors import FormatError
from vramscope.model.table import Array

_WORDS = {int: "an integer", str: "a text", list: "a list", dict: "an object", bool: "true or false"}
_ABSENT = object()


class Rows:
    """A list of dicts, whose keys become columns. A million rows take 0.1 s per column."""

    __slots__ = ("_rows", "_where")

    def __init__(self, rows: Sequence[Any], where: Callable[[int], str]) -> None:
        """Wrap *rows*; *where* gives the path of a row inside the file, for messages."""
        self._rows = rows
        self._where = where
        self._check(rows, (dict,), "")

    def __len__(self) -> int:
        return len(self._rows)

    def column(self, key: str, kinds: tuple[type, ...], default: Any = _ABSENT) -> list[Any]:
        """The value of *key* in every row, of one of the types *kinds*; *default* where it is absent."""
        try:
            found = [row[key] for row in self._rows]
        except KeyError:
            if default is _ABSENT:
                self._refuse_absent(key)
            found = [row.get(key, default) for row in self._rows]
        self._check(found, kinds if default is _ABSENT else (*kinds, type(default)), f".{key}")
        return found

    def first_has(self, key: str) -> bool:
        """Whether the first row has *key*; false where there is no row."""
        return len(self._rows) > 0 and key in self._rows[0]

    def integers(self, key: str, dtype: str, default: Any = _ABSENT) -> Array:
        """The value of *key* in every row; none may be negative except the default."""
        found = self.column(key, (int,), default)
        lowest = min(0, default if default is not _ABSENT else 0)
        with suppress(OverflowError):
            values = np.array(found, dtype="i8")
            if not len(values) or values.min() >= lowest:
                return values.astype(dtype, copy=False)
        if dtype == "u8" and min(found) >= 0:  # NumPy 1 would turn a negative number into a large one
            with suppress(OverflowError):
                return np.array(found, dtype=dtype)
        top = np.iinfo(dtype).max
        at = next(i for i, value in enumerate(found) if not 0 <= value <= top)
        raise FormatError(
            f"{self._where(at)}.{key} is out of range: this is no snapshot of torch, or damaged"
        )

    def _check(self, values: Sequence[Any], kinds: tuple[type, ...], key: str) -> None:
        wrong = set(map(type, values)) - set(kinds)
        if wrong:
            at = next(i for i, value in enumerate(values) if type(value) in wrong)
            found, wanted = _word(type(values[at])), " or ".join(dict.fromkeys(map(_word, kinds)))
            raise FormatError(
                f"{self._where(at)}{key} is {found}, not {wanted}: this is no snapshot of torch"
            )

    def _refuse_absent(self, key: str) -> NoReturn:
        at = next(i for i, row in enumerate(self._rows) if key not in row)
        raise FormatError(f"{self._where(at)} has no {key!r}: this is no snapshot of torch, or damaged")


def checked(value: Any, kind: type, where: str) -> Any:
    """Return *value* if it is of the type *kind*; raise FormatError otherwise."""
    if type(value) is not kind:
        raise FormatError(f"{where} is {_word(type(value))}, not {_word(kind)}: this is no snapshot of torch")
    return value


def _word(kind: type) -> str:
    return _WORDS.get(kind, f"of type {kind.__name__}")


DEFAULT_POOL = (0, 0)
_LAST_TIME_US = 2**63 // 1000 - 1


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """One row per entry of a device's trace, in the order of the file."""

    words: tuple[str, ...]
    """The actions that occur, in order of first occurrence."""
    action: Array
    """Index into ``words``."""
    time_ns: Array
    address: Array
    size: Array
    stream: Array
    pool_ids: tuple[tuple[int, int], ...]
    """The pools that occur, in order of first occurrence."""
    pool: Array
    """Index into ``pool_ids``."""
    stacks: Sequence[list[Any]]
    """torch's lists of frames, in order of first occurrence; equal lists may occur several times."""
    stack: Array
    """Index into ``stacks``; −1 where an event has none."""
    device_free: Array
    """Bytes that the device had free at an out-of-memory error; else 0."""
    tells_pools: bool
    """Whether the first event names its pool (torch ≥ 2.12)."""
    metadata: tuple[tuple[int, str], ...] = ()
    """The rows that carry a text of the program, and the text (torch ≥ 2.11)."""

    def __len__(self) -> int:
        return len(self.action)


def events_of(rows: Rows) -> Events:
    """Convert a list of dicts to events. Raises FormatError. Takes 0.9 s per million events."""
    words, action = distinct(rows.column("action", (str,)))
    size, time_ns = rows.integers("size", "i8", 0), nanoseconds(rows.integers("time_us", "i8", 0))
    pools = list(map(tuple, rows.column("pool_id", (tuple, list), DEFAULT_POOL)))
    pool_ids, pool = distinct(pools)
    check_pools(pool_ids, "pool_id")
    stacks, stack = _lists(rows.column("frames", (list,), []))
    return Events(
        words=words,
        action=action,
        time_ns=time_ns,
        address=rows.integers("addr", "u8", 0),
        size=size,
        stream=rows.integers("stream", "u8", 0),
        pool_ids=pool_ids,
        pool=pool,
        stacks=stacks,
        stack=stack,
        # Only an out-of-memory error has it, and looking for it in every row would take 0.1 s per million.
        device_free=(
            rows.integers("device_free", "i8", 0) if "oom" in words else np.zeros(len(rows), dtype="i8")
        ),
        tells_pools=rows.first_has("pool_id"),
        metadata=texts_of(rows.column("user_metadata", (str, dict), ""))
        if rows.first_has("user_metadata")
        else (),
    )


def texts_of(values: Sequence[Any]) -> tuple[tuple[int, str], ...]:
    """The index and the text of each value that is not empty; a dict is what torch ≥ 2.15 writes as JSON."""
    given = [(at, value) for at, value in enumerate(values) if value] if any(values) else []
    return tuple((at, value if type(value) is str else _as_json(value)) for at, value in given)


def _as_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), default=str)


def nanoseconds(time_us: Array) -> Array:
    """Convert torch's times. Raises FormatError if one is beyond the range of nanoseconds."""
    if len(time_us) and time_us.max() > _LAST_TIME_US:
        raise FormatError("time_us is beyond the year 2200: this is no snapshot of torch, or damaged")
    return time_us.astype("i8") * 1000


def distinct(values: Sequence[Any]) -> tuple[tuple[Any, ...], Array]:
    """Each value once, in order of first occurrence, and the index of every value."""
    index = {value: i for i, value in enumerate(dict.fromkeys(values))}
    return tuple(index), _looked_up(index, values)


def check_pools(pool_ids: Sequence[tuple[Any, ...]], key: str) -> None:
    """Raise FormatError unless all ids are pairs of integers."""
    for pool in pool_ids:
        if len(pool) != 2 or type(pool[0]) is not int or type(pool[1]) is not int:
            raise FormatError(f"{key} is not a pair of integers: this is no snapshot of torch")


def _lists(lists: list[list[Any]]) -> tuple[list[list[Any]], Array]:
    """Each list object once: torch shares the list objects of equal stacks, and pickle keeps that."""
    ids = list(map(id, lists))
    known = dict(zip(ids, lists, strict=True))
    return list(known.values()), _looked_up({key: i for i, key in enumerate(known)}, ids)


def _looked_up(index: Mapping[Any, int], keys: Sequence[Any]) -> Array:
    """The index of every key; half the time of a list of them."""
    if len(index) == 1:
        return np.zeros(len(keys), dtype="i4")
    return np.fromiter(map(index.__getitem__, keys), dtype="i4", count=len(keys))
