"""Columns from the dicts of an untrusted file, checked on the way; an error names its place in the file."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from vramscope.errors import FormatError

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

    def integers(self, key: str, dtype: str, default: Any = _ABSENT) -> NDArray[Any]:
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
