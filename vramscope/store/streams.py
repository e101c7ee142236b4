"""What do the files of a trace directory say so far? Each stream as columns that grow with its file."""

from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vramscope.model.snapshot import Blocks, Segments, Snapshot
from vramscope.store.columns import GrowingColumn, Names, numbers, strings
from vramscope.store.framing import StreamFile
from vramscope.store.schema import ABSENT, POOLS, SCHEMAS, STATES, TABLES, file_name, numpy_type

Rows = TypeVar("Rows", Segments, Blocks)


class ColumnStream:
    """A stream of flat columns; strings become indices into ``names``."""

    __slots__ = ("_absent", "_columns", "_dtypes", "_names", "file")

    def __init__(self, directory: Path, stream: str, device: int | None = None, n_rows: int = 0) -> None:
        """Starts with *n_rows* rows of zeros, where row numbers do not start with the file's first row."""
        self.file = StreamFile(directory / file_name(stream, device))
        self._names = Names()
        self._absent = ABSENT.get(stream, 0)
        self._dtypes = {field.name: _dtype(field.type) for field in SCHEMAS[stream]}
        self._columns = {name: GrowingColumn(dtype or "i4") for name, dtype in self._dtypes.items()}
        for column in self._columns.values():
            column.extend(np.zeros(n_rows))

    def refresh(self) -> bool:
        """Take what was written since; whether there was something, damage included."""
        before = len(self), self.file.damage
        self._reserve(self.file.new_bytes())
        for batch in self.file.read(self._decode):
            for name, column in self._columns.items():
                column.extend(batch[name])
        return before != (len(self), self.file.damage)

    def _reserve(self, n_bytes: int) -> None:
        """Room for all rows that so many bytes can hold, so that a large file is copied once."""
        row_bytes = sum(np.dtype(dtype or "i4").itemsize for dtype in self._dtypes.values())
        for column in self._columns.values():
            column.reserve(n_bytes // row_bytes)

    def _decode(self, batch: pa.RecordBatch) -> dict[str, NDArray[Any]]:
        return {
            name: numbers(batch, name, dtype, self._absent)
            if dtype
            else self._names.indices(strings(batch, name))
            for name, dtype in self._dtypes.items()
        }

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def columns(self) -> dict[str, NDArray[Any]]:
        """Name → the rows so far."""
        return {name: column.view() for name, column in self._columns.items()}

    def names(self) -> tuple[str, ...]:
        """The strings that columns of strings refer to."""
        return self._names.tuple()


def _dtype(kind: pa.DataType) -> str:
    """Of NumPy; '' for strings."""
    return "" if kind == pa.string() else numpy_type(kind).str


class StateStream:
    """States of the allocator: only those that a recording shows are kept."""

    __slots__ = ("_n_taken", "file", "initial", "reported")

    def __init__(self, directory: Path, stream: str, device: int) -> None:
        self.file = StreamFile(directory / file_name(stream, device))
        self._n_taken = 0
        self.initial: Snapshot | None = None
        """Before the first event; the last one written: a later one knows more."""
        self.reported: Snapshot | None = None
        """The last that the source itself said."""

    def refresh(self) -> bool:
        """Take what was written since; whether there was something, damage included."""
        before = self._n_taken, self.file.damage
        for batch in self.file.read(_states):
            for reported, state in batch:
                self._keep(state, reported=reported)
        return before != (self._n_taken, self.file.damage)

    def _keep(self, state: Snapshot, *, reported: bool) -> None:
        self._n_taken += 1
        if reported:
            self.reported = state
        elif state.event == 0:
            self.initial = state


def _states(batch: pa.RecordBatch) -> list[tuple[bool, Snapshot]]:
    events, times = numbers(batch, "event", "i8").tolist(), numbers(batch, "time_ns", "i8").tolist()
    reported = numbers(batch, "reported", "?").tolist()
    return [
        (reported[row], _checked(Snapshot(events[row], times[row], *_tables(batch, row))))
        for row in range(len(batch))
    ]


def _tables(batch: pa.RecordBatch, row: int) -> tuple[Segments, Blocks]:
    return _rows(Segments, batch, row), _rows(Blocks, batch, row)


def _checked(state: Snapshot) -> Snapshot:
    of = state.blocks.segment
    if len(of) and not 0 <= of.min() <= of.max() < len(state.segments):
        raise pa.ArrowInvalid("a block of a state belongs to none of its segments")
    return state


def _rows(table: type[Rows], batch: pa.RecordBatch, row: int) -> Rows:
    at = batch.schema.get_field_index(table.__name__.lower())
    if at < 0 or not pa.types.is_list(batch.column(at).type):
        return table.of()
    items = batch.column(at)[row].values
    # from_struct_array would do, but takes all rows' items where pyarrow is old (15).
    rows = pa.RecordBatch.from_arrays(items.flatten(), names=[field.name for field in items.type])
    # Copied: Arrow's buffer holds all rows, and flags of a view of it cannot be set.
    columns = {name: np.array(numbers(rows, name, dtype)) for name, dtype in table.DTYPES.items()}
    return table(**columns)


class DeviceStreams:
    """The streams of one device."""

    def __init__(self, directory: Path, device: int) -> None:
        self.tables = {stream: ColumnStream(directory, stream, device) for stream in TABLES}
        self.states = StateStream(directory, STATES, device)
        self.pools = ColumnStream(directory, POOLS, device)
        self._all: tuple[ColumnStream | StateStream, ...]
        # Pools last: what refers to them is written after them, so it must be read before them.
        self._all = (*self.tables.values(), self.states, self.pools)

    def refresh(self) -> bool:
        """Take what was written since; whether there was something."""
        grew = [stream.refresh() for stream in self._all]  # each of them: any() stops at the first
        return any(grew)

    def __len__(self) -> int:
        """Events."""
        return len(self.tables["events"])

    def files(self) -> list[StreamFile]:
        """The files behind them."""
        return [stream.file for stream in self._all]

    def table(self, stream: str) -> Any:
        """The rows so far, as the model's table."""
        table, rows = TABLES[stream], self.tables[stream]
        named = {"names": rows.names()} if hasattr(table, "names") else {}
        return table(**rows.columns(), **named)

    def pool_ids(self) -> tuple[tuple[int, int], ...]:
        """torch's ids, by the index that columns carry."""
        columns = self.pools.columns()
        pairs = zip(columns["first"].tolist(), columns["second"].tolist(), strict=True)
        return tuple(pairs) or ((0, 0),)

    def last_ns(self) -> int:
        """Time of the last thing written."""
        last = (self.tables[stream].columns()["time_ns"][-1:] for stream in ("events", "marks", "samples"))
        return max((int(time_ns[0]) for time_ns in last if len(time_ns)), default=0)
