"""Equality of frozen results that hold arrays."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np


class EqualByValue:
    """A dataclass whose arrays are compared value by value, so that ``==`` is True or False.

    The equality that a dataclass generates raises for arrays of more than one element, and says nothing
    about arrays of one. Like the arrays, its instances cannot be hashed.
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # A dataclass keeps an __eq__ that it finds in the class itself.
        cls.__eq__ = EqualByValue.__eq__  # type: ignore[method-assign]

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        names = [field.name for field in fields(self) if field.compare]  # type: ignore[arg-type]
        return all(_equal(getattr(self, name), getattr(other, name)) for name in names)

    __hash__ = None  # type: ignore[assignment]


def _equal(one: Any, other: Any) -> bool:
    """Whether two fields are equal: arrays by dtype, shape and values, where NaN equals NaN."""
    if one is other:
        return True
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        has_nan = one.dtype.kind in "fc"
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=has_nan)
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return False
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(each, other[key]) for key, each in one.items())
    if isinstance(one, (tuple, list)) and type(one) is type(other):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)
