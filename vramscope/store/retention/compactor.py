"""Keeps a growing trace below a size: its oldest parts are replaced by a summary of them.

The summary is written next to the existing files, then the manifest names it in one step, then the parts are
deleted. So a process killed at any moment leaves the trace as it was before or as it is after.
"""

import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from vramscope.model.counters import Counters
from vramscope.model.holders import Holders
from vramscope.model.marks import Labels, Marks
from vramscope.model.past import StretchPeaks
from vramscope.stalls import own_thread
from vramscope.store import parts
from vramscope.store.batches import arrays, batch, row_of_state, write_compressed
from vramscope.store.framing import StreamFile
from vramscope.store.integrity import SUMMARY, FileSum, Owner
from vramscope.store.manifest import Cap
from vramscope.store.read.streams import DeviceStreams
from vramscope.store.retention.carry_over import CarriedState, DevicePart, compact_part, compact_summary
from vramscope.store.schema import PEAKS, STATES, STEPS, TABLES, device_of, file_name

_N_PARTS = 64
"""Least number of parts of a full trace."""
_PART_EVENTS = 250_000
"""Largest number of events of a part: to summarize it takes a second and 40 MB.

A loop that repeats itself takes 3 bytes an event, and the 64th of a cap of 2 GiB holds ten million of it.
"""
_FULL, _ROOM = 7 / 8, 3 / 4
"""Shares of the cap: above the first, the oldest parts are deleted until the second is reached.

That happens in few large steps, as a reader that follows must start again after each.
"""
_SHARE, _HURRY = 1 / 5, 15 / 16
"""The share of the time that the thread works, until the second share of the cap is used.

The program needs the interpreter too.
"""
_RETRY_S = 10.0
_SMALL = 1 << 20
_STREAMS = {table: stream for stream, table in TABLES.items()} | {StretchPeaks: PEAKS}
_GROWING = ("marks", "samples", PEAKS, STEPS)
"""Streams of a summary that the next summary continues."""


class Compactor:
    """Keeps one rank's directory below its size cap by replacing the oldest parts with a summary.

    A background thread does the work while there is any.
    """

    def __init__(
        self,
        home: tuple[Path, Owner],
        max_bytes: int,
        size: Callable[[], int],
        commit: Callable[[Cap, Mapping[str, FileSum], int], None],
        freed: Callable[[int], None],
    ) -> None:
        """Compact the directory in *home*, which also names the trace that it holds.

        *size* returns the bytes of the directory. *commit* makes a cap and the files of its summary valid; it
        is also given the summary's bytes. *freed* is given the number of bytes that were deleted.
        """
        self.cap = Cap(max_bytes)
        self._part_bytes = max(max_bytes // _N_PARTS, 1)
        self.error = ""
        """The reason why the last attempt failed; empty if it did not."""
        self._rank, self._owner = home
        self._size = size
        self._commit = commit
        self._freed = freed
        self._sums: dict[str, FileSum] = {}
        """The sums of the files of the valid summary."""
        self._whole: deque[tuple[int, int]] = deque()
        self._left: dict[int, CarriedState] = {}
        """The carried state of each device that has had any event."""
        self._thread: threading.Thread | None = None
        self._at_work = threading.Lock()
        self._is_awaited = threading.Event()
        self._again_s = float("-inf")

    def is_full(self, n_bytes: int, n_events: int) -> bool:
        """Whether a part of this size is complete."""
        return n_bytes >= self._part_bytes or n_events >= _PART_EVENTS

    def add_complete_part(self, number: int, n_bytes: int) -> None:
        """Note that a part is complete and will not grow any more."""
        self._whole.append((number, n_bytes))

    def start_if_full(self) -> None:
        """Start the thread if the cap is nearly reached; return at once."""
        is_busy = self._thread is not None and self._thread.is_alive()
        is_full = self._size() > self.cap.max_bytes * _FULL and len(self._whole) > 2
        if is_full and not is_busy and time.monotonic() >= self._again_s:
            self._thread = own_thread(self._work, "compactor")
            # The interpreter may be ending.
            with suppress(RuntimeError):
                self._thread.start()

    def compact(self) -> None:
        """Compact now, without pauses, and wait for it; a thread that already does so is waited for."""
        self._is_awaited.set()
        self._work()
        self._is_awaited.clear()

    def _work(self) -> None:
        with self._at_work:
            try:
                numbers = self._chosen()
                if numbers:
                    self._take(numbers)
                self.error = ""
            except Exception as error:  # noqa: BLE001 -- the writer's boundary: it asks when it must know
                self.error = f"{type(error).__name__}: {error}"
                self._again_s = time.monotonic() + _RETRY_S
            finally:
                # Each compaction has a thread of its own, whose heap Arrow's allocator keeps for later
                # threads: 90 MB after ten minutes, although Arrow holds none of it.
                pa.default_memory_pool().release_unused()

    def _chosen(self) -> list[int]:
        """Return the parts to delete.

        The newest complete part stays: it may hold marks of the part before it.
        """
        size, found = self._size(), []
        if size <= self.cap.max_bytes * _FULL:
            return []
        for number, n_bytes in list(self._whole)[:-1]:
            if size <= self.cap.max_bytes * _ROOM:
                break
            found.append(number)
            size -= n_bytes
        return found

    def _take(self, numbers: list[int]) -> None:
        old = parts.past(self._rank, self.cap.generation)
        new = parts.past(self._rank, self.cap.generation + 1)
        try:
            left, sums = self._summarize(numbers, old, new)
            n_bytes = sum(path.stat().st_size for path in new.iterdir())
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        events = {device: known.state.event for device, known in left.items()}
        cap = replace(self.cap, generation=self.cap.generation + 1, first_part=numbers[-1] + 1, events=events)
        self._commit(cap, {f"{new.name}/{name}": known for name, known in sums.items()}, n_bytes)
        self.cap, self._left, self._sums = cap, left, sums
        for _ in numbers:
            self._whole.popleft()
        # From here on nothing reads these files; one that cannot be deleted only takes space.
        removed_bytes = 0
        for home in [old] * (cap.generation > 1) + [parts.part(self._rank, number) for number in numbers]:
            with suppress(OSError):
                removed_bytes += parts.remove(home)
        self._freed(removed_bytes)

    def _summarize(
        self, numbers: list[int], old: Path, new: Path
    ) -> tuple[dict[int, CarriedState], dict[str, FileSum]]:
        """Write what stays of the parts into *new*; what there is then of each device, and of each file."""
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        known_files = (old, self._sums) if self.cap.generation else None
        summary = _SummaryDirectory(known_files, new, self._owner)
        left = dict(self._left)
        for number in numbers:
            began = time.monotonic()
            home, following = (parts.part(self._rank, at) for at in (number, number + 1))
            found = (device_of(path.name) for path in home.iterdir() if parts.is_in_part(path.name))
            for device in {device for device in found if device is not None}:
                known = _taken((home, following), device, left.get(device), summary)
                left |= {device: known} if known is not None else {}
            if self._size() < self.cap.max_bytes * _HURRY:
                self._is_awaited.wait((time.monotonic() - began) * (1 / _SHARE - 1))
        for device, known in left.items():
            summary.add(STATES, device, row_of_state(known.state, reported=False))
            summary.table(known.labels, device)
            summary.table(known.holders, device)
        summary.write()
        sums = summary.sums
        for device, known in left.items():
            sums |= compact_summary((new, self._owner), device, known.state.event, self.cap.max_bytes)
        return left, sums


class _SummaryDirectory:
    """The directory of a summary while it is written: the rows of the last summary and the new ones."""

    def __init__(self, known: tuple[Path, Mapping[str, FileSum]] | None, new: Path, owner: Owner) -> None:
        self._old: Path | None = known[0] if known else None
        self._old_sums: Mapping[str, FileSum] = known[1] if known else {}
        self._new = new
        self._owner = owner
        self.sums: dict[str, FileSum] = {}
        """The sums of the files written, by name."""
        self._rows: dict[str, list[pa.RecordBatch]] = {}

    def table(self, table: Marks | Labels | Holders | Counters | StretchPeaks, device: int) -> None:
        if len(table):
            stream = _STREAMS[type(table)]
            self.add(stream, device, batch(stream, arrays(table)))

    def add(self, stream: str, device: int, rows: pa.RecordBatch) -> None:
        self._rows.setdefault(file_name(stream, device), []).append(rows)

    def write(self) -> None:
        """Write all files and wait for the disk. Raises OSError."""
        old = [] if self._old is None else [path.name for path in self._old.iterdir()]
        for name in {*self._rows, *(name for name in old if name.startswith(_GROWING))}:
            self._write(name, None if self._old is None else self._old / name)

    def _write(self, name: str, old: Path | None) -> None:
        """Write one file; small batches are joined into one, as each has an overhead of some 500 bytes."""
        known = StreamFile(old) if old is not None and name.startswith(_GROWING) else None
        rows = self._rows.get(name, [])
        if known is not None and known.size() < _SMALL:
            rows, known = [*known.read(lambda batch: batch), *rows], None
        there = None
        if known is not None:
            shutil.copyfile(known.path, self._new / name)
            there = self._old_sums.get(name)
        owner = replace(self._owner, file=f"{SUMMARY}/{name}")
        self.sums[name] = write_compressed(self._new / name, rows, owner, there)


def _taken(
    homes: tuple[Path, Path], device: int, before: CarriedState | None, summary: _SummaryDirectory
) -> CarriedState | None:
    mine, following = _read(homes[0], device), _read(homes[1], device, events=False)
    if before is None and mine.states.initial is not None:
        before = CarriedState(mine.states.initial)
    left, peaks, marks = compact_part(before or CarriedState(), _part(mine), _part(following))
    summary.table(peaks, device)
    summary.table(marks, device)
    summary.table(mine.table("samples"), device)
    # A device that is not used yet will still report its first state.
    return None if before is None and not len(mine) else left


def _read(home: Path, device: int, *, events: bool = True) -> DeviceStreams:
    streams = DeviceStreams(home, [home], device)
    streams.refresh(events=events)
    damaged = next((file for file in streams.files() if file.damage or file.unfinished_bytes), None)
    if damaged is not None:
        # A summary of a damaged part would look like a summary of the whole part.
        raise ValueError(f"{damaged.path.name}: {damaged.damage or 'its end is missing'}")
    return streams


def _part(streams: DeviceStreams) -> DevicePart:
    return DevicePart(*(streams.table(name) for name in ("events", "marks", "labels", "holders")))
