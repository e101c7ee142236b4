"""The streams of a trace directory as columns that grow with their files."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from vramscope.columns import GrowingColumn
from vramscope.columns.scratch import Scratch
from vramscope.model.past import StretchPeaks, SummarizedSteps
from vramscope.model.snapshot import Blocks, Segments, Snapshot
from vramscope.model.table import Array
from vramscope.store.batches import Names, numbers, strings
from vramscope.store.framing import StreamFile
from vramscope.store.integrity import Owner
from vramscope.store.schema import (
    ABSENT,
    ADDED_LATER,
    PEAKS,
    POOLS,
    SCHEMAS,
    STATES,
    STEPS,
    TABLES,
    file_name,
    numpy_type,
)

Rows = TypeVar("Rows", Segments, Blocks)
Decoded = TypeVar("Decoded")


OwnerOf = Callable[[Path], Owner | None]
"""Returns the trace that the file at a path must belong to, and its place there; None accepts any."""


def anybody(_path: Path) -> Owner | None:
    """Accept any owner: for files that this process wrote itself."""
    return None


class FileChain:
    """One stream in several files, read in order.

    Nothing is read after a file that is not complete, as rows are identified by their number.
    """

    def __init__(self, homes: Sequence[Path], name: str, owner_of: OwnerOf) -> None:
        self._name = name
        self._at = 0
        self._owner_of = owner_of
        self.files: list[StreamFile] = []
        for home in homes:
            self.go_on_in(home)

    def go_on_in(self, home: Path) -> None:
        """Continue in the directory *home*; the file before is complete."""
        path = home / self._name
        self.files.append(StreamFile(path, self._owner_of(path)))

    def read(self, decode: Callable[[pa.RecordBatch], Decoded]) -> Iterator[Decoded]:
        """Yield every new whole batch, decoded."""
        for at in range(self._at, len(self.files)):
            self._at = at
            yield from self.files[at].read(decode)
            if self.files[at].damage or self.files[at].unfinished_bytes:
                return

    def new_bytes(self) -> int:
        """Return the number of bytes added since the last read."""
        return sum(file.new_bytes() for file in self.files[self._at :])

    def damage(self) -> str:
        """Return what is wrong with the first file that is not complete; empty if nothing is."""
        return self.files[self._at].damage if self.files else ""


class ColumnStream:
    """A stream of flat columns; strings become indices into ``names``."""

    def __init__(
        self, files: FileChain, stream: str, n_rows: int = 0, scratch: Scratch | None = None
    ) -> None:
        """Start with *n_rows* rows of zeros, for streams whose row numbers do not start with their file."""
        self.chain = files
        self._required = required_columns(stream)
        self._names = Names()
        self._absent = ABSENT.get(stream, 0)
        self._dtypes = {
            field.name: "" if field.type == pa.string() else numpy_type(field.type).str
            for field in SCHEMAS[stream]
        }
        self._columns = {name: GrowingColumn(dtype or "i4", scratch) for name, dtype in self._dtypes.items()}
        for column in self._columns.values():
            column.extend(np.zeros(n_rows))

    def refresh(self) -> bool:
        """Take what was written since; whether there was something, damage included."""
        before = len(self), self.chain.damage()
        self._reserve(self.chain.new_bytes())
        for batch in self.chain.read(self._decode):
            for name, column in self._columns.items():
                column.extend(batch[name])
        return before != (len(self), self.chain.damage())

    def _reserve(self, n_bytes: int) -> None:
        """Reserve rows for *n_bytes* bytes, so that a large file is copied only once."""
        row_bytes = sum(np.dtype(dtype or "i4").itemsize for dtype in self._dtypes.values())
        for column in self._columns.values():
            column.reserve(n_bytes // row_bytes)

    def _decode(self, batch: pa.RecordBatch) -> dict[str, Array]:
        check_columns(batch, self._required)
        return {
            name: numbers(batch, name, dtype, self._absent)
            if dtype
            else self._names.indices(strings(batch, name))
            for name, dtype in self._dtypes.items()
        }

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def is_within(self, limits: Mapping[str, int]) -> bool:
        """Return whether every value of the columns *limits* is at least 0 and below its limit."""
        columns = ((self._columns[name], limit) for name, limit in limits.items())
        return all(column.low >= 0 and column.high < limit for column, limit in columns)

    def columns(self) -> dict[str, Array]:
        """Return the rows so far, by column name."""
        return {name: column.view() for name, column in self._columns.items()}

    def names(self) -> tuple[str, ...]:
        """Return the strings that columns of strings refer to."""
        return self._names.tuple()


def required_columns(stream: str) -> frozenset[str]:
    """Return the columns that every file of a stream has, in every version."""
    return frozenset(SCHEMAS[stream].names) - ADDED_LATER.get(stream, frozenset())


def check_columns(batch: pa.RecordBatch, required: frozenset[str]) -> None:
    """Raise pa.ArrowInvalid if a column is missing: another stream's file must not be read as zeros."""
    missing = required.difference(batch.schema.names)
    if missing:
        raise pa.ArrowInvalid(f"it has no column {', '.join(sorted(missing))}: it is a file of another kind")


class StateStream:
    """The allocator's states; only those that a recording uses are kept."""

    def __init__(self, files: FileChain, first_event: int = 0) -> None:
        self.chain = files
        self._first_event = first_event
        self._n_taken = 0
        self.initial: Snapshot | None = None
        """The state before the first event; the last one written is used, as it knows more."""
        self.reported: Snapshot | None = None
        """The last state that the source itself reported."""

    def refresh(self) -> bool:
        """Take what was written since; whether there was something, damage included."""
        before = self._n_taken, self.chain.damage()
        for batch in self.chain.read(_states):
            for reported, state in batch:
                self._keep(state, reported=reported)
        return before != (self._n_taken, self.chain.damage())

    def _keep(self, state: Snapshot, *, reported: bool) -> None:
        self._n_taken += 1
        if reported:
            self.reported = state
        elif state.event == self._first_event:
            self.initial = state


def _states(batch: pa.RecordBatch) -> list[tuple[bool, Snapshot]]:
    check_columns(batch, required_columns(STATES))
    events, times = numbers(batch, "event", "i8").tolist(), numbers(batch, "time_ns", "i8").tolist()
    reported = numbers(batch, "reported", "?").tolist()
    states = (
        Snapshot(events[row], times[row], _rows(Segments, batch, row), _rows(Blocks, batch, row))
        for row in range(len(batch))
    )
    return list(zip(reported, map(_checked, states), strict=True))


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
    # from_struct_array would do, but old versions of pyarrow (15) take the items of all rows.
    rows = pa.RecordBatch.from_arrays(items.flatten(), names=[field.name for field in items.type])
    # The rows are copied: Arrow's buffer contains all rows, and flags of a view of it cannot be set.
    columns = {name: np.array(numbers(rows, name, dtype)) for name, dtype in table.DTYPES.items()}
    return table(**columns)


class DeviceStreams:
    """All streams of one device."""

    def __init__(
        self,
        rank: Path,
        homes: Sequence[Path],
        device: int,
        first_event: int = 0,
        owner_of: OwnerOf = anybody,
        scratch: Scratch | None = None,
    ) -> None:
        """Open the streams in the directories *homes* (see ``parts``).

        *first_event* is the number of deleted events before them; columns of a run that grows are kept in
        *scratch*.
        """

        def files(stream: str, homes: Sequence[Path]) -> FileChain:
            return FileChain(homes, file_name(stream, device), owner_of)

        self.first_event = first_event
        self.tables = {stream: ColumnStream(files(stream, homes), stream, 0, scratch) for stream in TABLES}
        self.states = StateStream(files(STATES, homes), first_event)
        self.peaks = ColumnStream(files(PEAKS, homes[:1]), PEAKS)
        self.summarized = ColumnStream(files(STEPS, homes[:1]), STEPS)
        self.pools = ColumnStream(files(POOLS, [rank]), POOLS)
        self._in_parts: tuple[ColumnStream | StateStream, ...] = (*self.tables.values(), self.states)

    def go_on_in(self, home: Path) -> None:
        """Continue in the next part, the directory *home*."""
        for stream in self._in_parts:
            stream.chain.go_on_in(home)

    def refresh(self, *, events: bool = True) -> bool:
        """Read what was written since, with or without the events; return whether anything is new."""
        # Rows are written after what they refer to, so they must be read before it: pools last, events before
        # them. Marks ahead of their events would be clipped, which is a copy of all marks at each refresh.
        written_first = [self.tables["events"]] if events else []
        referring = [stream for stream in self._in_parts if stream is not self.tables["events"]]
        # Every stream is refreshed: any() without a list would stop at the first.
        grew = [
            stream.refresh()
            for stream in (*referring, *written_first, self.peaks, self.summarized, self.pools)
        ]
        return any(grew)

    def __len__(self) -> int:
        """Return the number of retained events."""
        return len(self.tables["events"])

    def files(self) -> list[StreamFile]:
        """Return the files of all streams."""
        return [
            file
            for stream in (*self._in_parts, self.peaks, self.summarized, self.pools)
            for file in stream.chain.files
        ]

    def table(self, stream: str) -> Any:
        """Return the rows so far as the model's table."""
        table, rows = TABLES[stream], self.tables[stream]
        named = {"names": rows.names()} if hasattr(table, "names") else {}
        return table(**rows.columns(), **named)

    def past(self) -> tuple[StretchPeaks, SummarizedSteps]:
        """Return the peaks of the deleted events, and the oldest steps, whose marks are deleted."""
        return StretchPeaks(**self.peaks.columns()), SummarizedSteps(**self.summarized.columns())

    def pool_ids(self) -> tuple[tuple[int, int], ...]:
        """Return torch's pool ids, ordered by the index that columns use."""
        columns = self.pools.columns()
        pairs = zip(columns["first"].tolist(), columns["second"].tolist(), strict=True)
        return tuple(pairs) or ((0, 0),)

    def last_ns(self) -> int:
        """Return the time of the last row written."""
        last = (self.tables[stream].columns()["time_ns"][-1:] for stream in ("events", "marks", "samples"))
        return max((int(time_ns[0]) for time_ns in last if len(time_ns)), default=0)
