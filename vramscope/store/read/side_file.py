"""Reads the small JSON files beside a trace, which anyone may have written, within limits."""

import json
import math
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from errno import EFBIG, EINVAL
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NoReturn, Union, get_args, get_origin, get_type_hints

DAMAGE = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What reading and understanding such a file raises, whatever is in it."""
_LARGEST = 2**63


def content(path: Path, largest_bytes: int) -> bytes:
    """Return the bytes of a regular file; raises OSError for any other, and for one that is larger.

    A pipe would be waited for, a device never ends, and the size that a file says may be that of a hole.
    """
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(opened, "rb", buffering=0) as file:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(EINVAL, "it is no regular file", str(path))
        if status.st_size > largest_bytes:
            raise OSError(EFBIG, f"it is larger than {largest_bytes / 2**20:.3g} MiB", str(path))
        pieces, left = [], largest_bytes + 1
        while left and (piece := file.read(left)):
            pieces.append(piece)
            left -= len(piece)
    if not left:  # a file that grows, or one of /proc, which has no size
        raise OSError(EFBIG, f"it is larger than {largest_bytes / 2**20:.3g} MiB", str(path))
    return b"".join(pieces)


def document(path: Path, largest_bytes: int) -> dict[str, Any]:
    """Return the object in a JSON file. Raises OSError or ValueError, also for NaN and for deep nesting."""
    return parsed(content(path, largest_bytes))


def parsed(data: bytes) -> dict[str, Any]:
    """Return the object in the bytes of a JSON file. Raises ValueError, as ``document`` does."""
    try:
        found = json.loads(data, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found


def checked(value: Any, kind: Any) -> Any:
    """Return *value* if it is all that the type *kind* says, its fields too; raises ValueError if not.

    An annotation alone does not hold what comes from a file: a rank ``"../x"``, a size of 5,000 digits.
    """
    if not _check(kind)(value):
        raise ValueError(f"{value!r:.80} is no {getattr(kind, '__name__', kind)}")
    return value


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


@cache
def _check(kind: Any) -> Callable[[Any], bool]:
    """Return the check for a type, which is looked at once: 10,000 summaries have millions of values."""
    base, inner = get_origin(kind), get_args(kind)
    while hasattr(base, "__value__"):  # NumPy 2.5 names a type by NDArray: it has no subclasses
        base = get_origin(base.__value__)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if base in (Union, UnionType):
        return lambda value: any(_check(each)(value) for each in inner)
    if base is tuple and inner[-1] is Ellipsis:
        every = inner[0]
        return lambda value: type(value) is tuple and all(map(_check(every), value))
    if base is not None and issubclass(base, Mapping):
        key, item = map(_check, inner)
        return lambda value: (
            isinstance(value, dict) and all(map(key, value)) and all(map(item, value.values()))
        )
    own = [field.name for field in fields(kind)] if is_dataclass(kind) else getattr(kind, "_fields", ())
    hints = get_type_hints(kind) if own else {}
    checks: list[tuple[str, Callable[[Any], bool]]] = []

    def is_of_kind(value: Any) -> bool:
        if not checks:  # only now: a type may have itself as a field
            checks.extend((name, _check(hints[name])) for name in own)
        return isinstance(value, base or kind) and all(check(getattr(value, name)) for name, check in checks)

    return is_of_kind


_PLAIN: Mapping[Any, Callable[[Any], bool]] = {
    Any: lambda _: True,
    str: lambda value: type(value) is str,
    bool: lambda value: type(value) is bool,
    NoneType: lambda value: value is None,
    int: lambda value: type(value) is int and -_LARGEST <= value < _LARGEST,
    float: lambda value: type(value) in (int, float) and math.isfinite(value),
}
