"""The base of all tables of columns, and equality of frozen results that hold arrays."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vramscope.errors import MissingExtraError

if TYPE_CHECKING:
    from typing_extensions import Self


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


Array: TypeAlias = NDArray[Any]
"""A column; its dtype is said by its table, or follows from its name."""

Int64: TypeAlias = Annotated[NDArray[Any], "i8"]
Int32: TypeAlias = Annotated[NDArray[Any], "i4"]
UInt64: TypeAlias = Annotated[NDArray[Any], "u8"]
UInt8: TypeAlias = Annotated[NDArray[Any], "u1"]
Bool: TypeAlias = Annotated[NDArray[Any], "?"]


class Table(EqualByValue):
    """A frozen dataclass whose array fields are columns of one length.

    Subclasses name the dtype of every column in its annotation; other fields (lists of names) are kept as
    they are. Columns are never written after construction.
    """

    __slots__ = ()
    DTYPES: ClassVar[Mapping[str, str]] = {}
    """The dtype of each column, in order of declaration."""
    TEXT_COLUMNS: ClassVar[frozenset[str]] = frozenset({"name"})
    """Columns of a table with ``names`` that are indices into it; files store the texts."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # A dataclass keeps a __repr__ that it finds in the class itself.
        cls.__repr__ = Table.__repr__  # type: ignore[method-assign]
        hints = cls.__annotations__.items()
        own = {name: hint.__metadata__[0] for name, hint in hints if hasattr(hint, "__metadata__")}
        cls.DTYPES = {**cls.DTYPES, **own}

    def __repr__(self) -> str:
        """One line at a prompt instead of thousands of numbers."""
        return f"{type(self).__name__}({len(self):,} rows of {', '.join(self.DTYPES)})"

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self.columns()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"{type(self).__name__}: columns differ in length: {lengths}")
        for name, column in self.columns():
            if column.dtype != np.dtype(self.DTYPES[name]):
                raise TypeError(f"{type(self).__name__}.{name}: {column.dtype}, not {self.DTYPES[name]}")
            column.setflags(write=False)

    def columns(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Name and array of each column, in order of declaration."""
        return ((name, getattr(self, name)) for name in self.DTYPES)

    def __len__(self) -> int:
        return len(getattr(self, next(iter(self.DTYPES))))

    @classmethod
    def of(cls, **columns: Any) -> "Self":
        """Build from any sequences, converted to the declared dtypes; missing columns become zeros."""
        n_rows = next((len(columns[name]) for name in cls.DTYPES if name in columns), 0)
        arrays = {
            name: np.array(columns.pop(name), dtype=dtype) if name in columns else np.zeros(n_rows, dtype)
            for name, dtype in cls.DTYPES.items()
        }
        return cls(**arrays, **columns)

    @classmethod
    def joined(cls, *tables: "Self") -> "Self":
        """All rows of one table or several, which have no fields besides columns and ``names``."""
        columns = {name: [getattr(each, name) for each in tables] for name in cls.DTYPES}
        others = {}
        if hasattr(cls, "names"):
            names = {"": 0}
            new = [[names.setdefault(name, len(names)) for name in each.names] for each in tables]  # type: ignore[attr-defined]
            for name in cls.TEXT_COLUMNS:
                columns[name] = [np.array(at, "i4")[of] for at, of in zip(new, columns[name], strict=True)]
            others["names"] = tuple(names)
        return cls(**{name: np.concatenate(parts) for name, parts in columns.items()}, **others)

    def rows(self, index: Any) -> "Self":
        """The rows that *index* (a slice, mask or index array) selects."""
        rest = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in self.DTYPES}  # type: ignore[arg-type]
        return type(self)(**{name: column[index] for name, column in self.columns()}, **rest)

    def to_pandas(self) -> Any:
        """The same rows as a ``pandas.DataFrame``; raises MissingExtraError where pandas is not installed."""
        return data_frame(dict(self.columns()))


_STRETCH = 1 << 16


def first_greatest(column: NDArray[Any]) -> int:
    """The first row with the greatest value of a column, which is not empty.

    ``argmax`` copies a read-only column: 40 MB of five million rows, 10 to 150 ms where this takes 5.
    """
    most = column.max()
    stretches = range(0, len(column), _STRETCH)
    first = next(at for at in stretches if column[at : at + _STRETCH].max() == most)
    return first + int(column[first : first + _STRETCH].argmax())


def stretches(n_rows: int, size: int = _STRETCH) -> Iterator[slice]:
    """Slices of *n_rows* rows: what is computed of one fits the processor's cache and takes no fresh memory.

    Fresh memory costs up to a second per 100 MB on a virtual machine.
    """
    return (slice(first, min(first + size, n_rows)) for first in range(0, n_rows, size))


def looked_up(values: NDArray[Any], index: NDArray[Any]) -> NDArray[Any]:
    """``values[index]`` without a copy of a long index.

    NumPy converts an index of small integers at once: 40 MB of five million rows, most of it fresh memory.
    """
    found = np.empty(len(index), values.dtype)
    for at in stretches(len(index)):
        found[at] = values[index[at]]
    return found


def rows_within(start: Array, end: Array, at: Array) -> Array:
    """The row of the ordered, disjoint intervals ``[start, end)`` that each of *at* lies in; −1 for none."""
    row = np.searchsorted(start, at, side="right") - 1
    return np.where((row >= 0) & (at < end[row]), row, -1) if len(start) else row


def sums_of(group: Array, values: Array, n_groups: int) -> Array:
    """The sum of the *values* of each group, in integers: ``bincount`` with weights sums in floats."""
    sums = np.zeros(n_groups, "i8")
    np.add.at(sums, group.reshape(-1), values)
    return sums


def data_frame(columns: Mapping[str, Any]) -> Any:
    """The columns as a ``pandas.DataFrame``; raises MissingExtraError where pandas is not installed."""
    try:
        import pandas as pd  # late: the core itself needs no pandas
    except ImportError as error:
        raise MissingExtraError("pandas", "pandas") from error
    return pd.DataFrame(columns)
