"""Where a recorder puts what it finds: a directory that only ever grows.

Every call hands one complete record batch to the operating system before it returns. A process killed at any
moment has therefore lost only what it had not handed over; nothing waits in a buffer of ours.
"""

import errno
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vramscope.errors import StoreError
from vramscope.model.device import Device, Process
from vramscope.model.marks import Note
from vramscope.model.recording import Outcome
from vramscope.model.snapshot import Snapshot
from vramscope.model.table import Table
from vramscope.store import manifest as manifests
from vramscope.store.appendfile import AppendFile
from vramscope.store.columns import number_array, string_array
from vramscope.store.directory import MANIFEST
from vramscope.store.launch import LaunchFrames
from vramscope.store.liveness import here
from vramscope.store.manifest import Manifest
from vramscope.store.schema import (
    EVERY_DEVICE,
    NOTES,
    POOLS,
    SCHEMAS,
    STACKS,
    STATES,
    TABLES,
    file_name,
)

_SYNC_EVERY_S = 30.0
"""Some milliseconds per file: too much after every step of a loop that re-enters the recorder. The kernel
writes what is older than this by itself."""

_STREAMS = {table: stream for stream, table in TABLES.items()}

_ADVICE = {
    errno.ENOSPC: "the disk is full: free some space, or record to another one",
    errno.EDQUOT: "your quota is used up: free some space, or record elsewhere",
    errno.EROFS: "the file system is read-only: record to another directory",
    errno.EACCES: "no permission: record to a directory of your own",
    errno.EPERM: "no permission: record to a directory of your own",
    errno.EMFILE: "too many open files: raise `ulimit -n`",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOTDIR: "a file is in the way: record to another directory",
}


class Writer:
    """One rank's part of a run directory: ``directory/rank0/``. Safe to use from several threads.

    The first error stops it for good, with StoreError now and at each later call: a batch left out would
    shift every later instant. What was written before stays readable.
    """

    def __init__(
        self,
        directory: Path,
        *,
        source: str,
        process: Process,
        devices: Sequence[Device],
        started_ns: int,
    ) -> None:
        """Raises StoreError where the directory holds this rank of a run already, or cannot be written."""
        self.path = Path(directory) / f"rank{process.rank}"
        self.written_bytes = 0
        """Of everything in the directory, for a cap."""
        self._lock = Lock()
        self._pid = os.getpid()
        self._files: dict[str, AppendFile] = {}
        self._n_pools: dict[int, int] = {}
        self._launch = LaunchFrames()
        self._stopped = ""
        self._is_open = True
        self._synced_s = float("-inf")
        self._manifest = Manifest(
            source=source,
            process=process,
            devices=tuple(devices),
            incarnation=here(),
            started_ns=started_ns,
        )
        self._claim()

    def stacks(self, rows: Iterable[tuple[int, str, str, int]]) -> None:
        """Append nodes as ``StackBuilder.rows`` gives them; before whatever refers to them."""
        columns = list(zip(*self._launch.without(rows), strict=True))
        if columns:
            parent, function, file, line = columns
            names = string_array(function), string_array(file)
            self._write(STACKS, None, [_array(parent, "i4"), *names, _array(line, "i4")])

    def append(self, table: Table, device: int) -> None:
        """Append rows of a Trace, Marks, Labels or Counters; names are stored as strings."""
        if len(table):
            self._write(_STREAMS[type(table)], device, _arrays(table))

    def state(self, snapshot: Snapshot, device: int, *, reported: bool) -> None:
        """Append the allocator's state at an instant.

        *reported*: as the source itself told it. Else reconstructed; of event 0, the state before the trace.
        """
        head = [
            _array([snapshot.event], "i8"),
            _array([snapshot.time_ns], "i8"),
            _array([reported], "?"),
        ]
        self._write(STATES, device, [*head, _list_of_one(snapshot.segments), _list_of_one(snapshot.blocks)])

    def pools(self, pools: Sequence[tuple[int, int]], device: int) -> None:
        """All pool ids so far, by index; only those that are new are written."""
        new = pools[self._n_pools.get(device, 0) :]
        if new:
            self._n_pools[device] = len(pools)
            self._write(POOLS, device, [_array(column, "u8") for column in zip(*new, strict=True)])

    def device(self, device: Device) -> None:
        """One more than the manifest says so far."""
        with self._mine():
            self._manifest = replace(self._manifest, devices=(*self._manifest.devices, device))
            if self._is_open:
                self._save(self._manifest, durable=False)

    def note(self, note: Note, device: int | None = None) -> None:
        """Append something missing, doubtful or repaired; without *device* it concerns the whole rank."""
        self._write(
            NOTES,
            None,
            [
                _array([EVERY_DEVICE if device is None else device], "i4"),
                string_array([note.code]),
                string_array([note.text]),
                _array([note.value], "i8"),
            ],
        )

    def close(self, outcome: Outcome, error: str = "") -> None:
        """Say how it ended, and let go of the files; nothing happens where that was done already.

        Waits for the disk, so that a power failure loses nothing either, but at most every 30 seconds.
        """
        with self._mine():
            if self._is_open:
                self._is_open = False
                durable = time.monotonic() - self._synced_s >= _SYNC_EVERY_S
                self._let_go(durable=durable)
                ended = replace(
                    self._manifest,
                    outcome=outcome,
                    ended_ns=time.time_ns(),
                    error=error,
                    stopped=self._stopped,
                )
                self._save(ended, durable=durable)
                if durable:
                    self._synced_s = time.monotonic()

    def reopen(self) -> None:
        """Continue the same run: what comes is appended to what is there."""
        with self._mine():
            if not self._is_open:
                self._save(self._manifest, durable=False)
                self._is_open = True

    def _claim(self) -> None:
        try:
            # mkdir decides between two processes that want the same place.
            self.path.mkdir(parents=True)
        except FileExistsError:
            raise StoreError(
                f"{self.path}: there is a run already, and none is overwritten: record to another directory"
            ) from None
        except OSError as error:
            raise StoreError(_complaint(self.path, error)) from error
        try:
            self._save(self._manifest, durable=False)
        except StoreError:
            _remove(self.path)
            raise

    @contextmanager
    def _mine(self) -> Iterator[None]:
        # Before the lock: a fork may have copied it locked.
        if os.getpid() != self._pid:
            raise StoreError(f"{self.path}: belongs to process {self._pid}; a fork of it cannot write there")
        with self._lock:
            yield

    def _write(self, stream: str, device: int | None, columns: list[pa.Array]) -> None:
        batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMAS[stream])
        with self._mine():
            if self._stopped:
                raise StoreError(self._stopped)
            if not self._is_open:
                raise StoreError(f"{self.path}: closed; reopen() continues it")
            path = self.path / file_name(stream, device)
            try:
                file = self._file(path, stream)
                self.written_bytes += file.append(batch.serialize())
            except OSError as error:
                self._stopped = _complaint(path, error)
                raise StoreError(self._stopped) from error

    def _file(self, path: Path, stream: str) -> AppendFile:
        file = self._files.get(path.name)
        if file is None:
            file = self._files[path.name] = AppendFile(path)
            if not file.size:
                self.written_bytes += file.append(SCHEMAS[stream].serialize())
        return file

    def _let_go(self, *, durable: bool) -> None:
        for name, file in self._files.items():
            error = _close(file, durable=durable)
            if error is not None and not self._stopped:
                self._stopped = _complaint(self.path / name, error)
        self._files.clear()

    def _save(self, manifest: Manifest, *, durable: bool) -> None:
        path = self.path / MANIFEST
        try:
            self.written_bytes += manifests.write(path, manifest, durable=durable)
        except OSError as error:
            raise StoreError(_complaint(path, error)) from error


def _close(file: AppendFile, *, durable: bool) -> OSError | None:
    try:
        file.close(durable=durable)
    except OSError as error:
        return error
    return None


def _array(values: Sequence[int], dtype: str) -> pa.Array:
    return number_array(np.array(values, dtype))


def _arrays(table: Table) -> list[pa.Array]:
    names = getattr(table, "names", ())
    return [
        _named(column, names) if names and name == "name" else number_array(column)
        for name, column in table.columns()
    ]


def _named(column: NDArray[Any], names: Sequence[str]) -> pa.Array:
    """The strings that *column* stands for; a call costs its rows, not all names so far."""
    used, row_of = np.unique(column, return_inverse=True)
    return string_array(names[index] for index in used).take(number_array(row_of))


def _list_of_one(table: Table) -> pa.Array:
    """All rows of *table* as the value of one row."""
    kind = SCHEMAS[STATES].field(type(table).__name__.lower()).type
    rows = pa.StructArray.from_arrays(_arrays(table), fields=list(kind.value_type))
    return pa.ListArray.from_arrays(_array([0, len(table)], "i4"), rows, type=kind)


def _complaint(path: Path, error: OSError) -> str:
    advice = _ADVICE.get(error.errno or 0, "record to another directory")
    return f"{path}: cannot write ({error.strerror}); {advice}"


def _remove(directory: Path) -> None:
    with suppress(OSError):
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()
