"""Writes the trace directory of one rank.

Every call passes one complete record batch to the operating system before it returns. So a process that is
killed at any moment loses only what it had not passed on; nothing waits in a buffer.
"""

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock

import pyarrow as pa

from vramscope.errors import StoreError
from vramscope.model.device import Device, Process
from vramscope.model.marks import Note
from vramscope.model.recording import Outcome
from vramscope.model.snapshot import Snapshot
from vramscope.model.table import Table
from vramscope.package_data import words
from vramscope.store import manifest as manifests
from vramscope.store import parts
from vramscope.store.batches import SealedFile, array, arrays, batch, row_of_state, string_array
from vramscope.store.directory import MANIFEST, rank_name
from vramscope.store.integrity import FileSum, Owner
from vramscope.store.liveness import current_incarnation
from vramscope.store.manifest import Cap, Manifest
from vramscope.store.retention.compactor import Compactor
from vramscope.store.schema import EVERY_DEVICE, IN_EACH_PART, NOTES, POOLS, STACKS, STATES, TABLES, file_name
from vramscope.store.write.launcher_frames import LaunchFrames
from vramscope.store.write.own_file import REPLACED, Claim, Identity, OwnFile
from vramscope.units import format_bytes

_SYNC_EVERY_S = 30.0
"""The least time between two waits for the disk.

Waiting takes some milliseconds per file: too much after every step of a loop that re-enters the recorder. The
kernel writes older data by itself.
"""

_BEGIN_PARTS = ("events", "samples")

_STREAMS = {table: stream for stream, table in TABLES.items()}

_ADVICE = words(__file__, "writer.tsv", "advice")


class Writer:
    """Writes one rank's part of a run directory, ``directory/rank0/``; may be used from several threads.

    The first error stops it for good: this call and each later one raise StoreError, as a missing batch would
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
        max_bytes: int | None = None,
    ) -> None:
        """Create the rank's directory.

        *max_bytes* is the size cap of the directory; at the cap, the detail of its oldest parts is replaced
        by a summary. Raises StoreError if the directory already contains this rank, or cannot be written.
        """
        self.path = Path(directory) / rank_name(process.rank, process.restarts)
        self.written_bytes = 0
        """The size of everything in the directory in bytes, for the cap."""
        self._lock = Lock()
        self._pid = os.getpid()
        self._files: dict[str, SealedFile] = {}
        """The open files, by their path in the rank's directory."""
        self._sums: dict[str, FileSum] = {}
        """The sums of the files that are not open."""
        self._places: dict[str, tuple[Identity, int]] = {}
        """Which files were closed, and their sizes."""
        self._begun: set[str] = set()
        """The files that were opened, or would have been without an interruption."""
        self._n_batches = 0
        """The number of batches in all files, which numbers the last one."""
        self._n_pools: dict[int, int] = {}
        self._launch = LaunchFrames()
        self._stopped = ""
        self._is_open = True
        self._synced_s = float("-inf")
        incarnation = current_incarnation()
        self._manifest = Manifest(
            source=source,
            process=process,
            devices=tuple(devices),
            incarnation=incarnation,
            started_ns=started_ns,
            id=manifests.new_id(process, incarnation, started_ns),
        )
        self._saved = self._manifest
        self._manifest_bytes = 0
        self._part = self._part_bytes = self._part_events = 0
        """The number of the growing part, its size in bytes and its number of events."""
        self._compactor = None
        if max_bytes is not None:
            owner = Owner(self._manifest.id)
            self._compactor = Compactor(
                (self.path, owner), max_bytes, lambda: self.written_bytes, self._commit, self._freed
            )
        self._manifest_file = OwnFile(self.path / MANIFEST)
        self._claim = self._claimed()

    @property
    def manifest(self) -> Manifest:
        """The manifest while the recording runs, without the sums of its files."""
        return self._manifest

    def stacks(self, rows: Iterable[tuple[int, str, str, int]]) -> None:
        """Append nodes as ``StackBuilder.rows`` yields them, before any row that refers to them."""
        columns = list(zip(*self._launch.without(rows), strict=True))
        if columns:
            parent, function, file, line = columns
            names = string_array(function), string_array(file)
            self._write(STACKS, None, batch(STACKS, [array(parent, "i4"), *names, array(line, "i4")]))

    def append(self, table: Table, device: int) -> None:
        """Append rows of a table of the model; names are stored as strings."""
        if len(table):
            stream = _STREAMS[type(table)]
            self._begin_part_if_full(stream)
            self._write(stream, device, batch(stream, arrays(table)))
            self._part_events += len(table) if stream == "events" else 0

    def state(self, snapshot: Snapshot, device: int, *, reported: bool) -> None:
        """Append the allocator's state at an instant.

        *reported* means that the source itself reported it. Otherwise it is reconstructed; at event 0 it is
        the state before the trace.
        """
        self._write(STATES, device, row_of_state(snapshot, reported=reported))

    def pools(self, pools: Sequence[tuple[int, int]], device: int) -> None:
        """Append pool ids; *pools* is all ids so far by index, and only new ones are written."""
        new = pools[self._n_pools.get(device, 0) :]
        if new:
            self._n_pools[device] = len(pools)
            columns = [array(column, "u8") for column in zip(*new, strict=True)]
            self._write(POOLS, device, batch(POOLS, columns))

    def device(self, device: Device) -> None:
        """Add a device to the manifest."""
        self._change(lambda known: replace(known, devices=(*known.devices, device)))

    def mesh(self, coordinates: Mapping[str, int]) -> None:
        """Add the coordinates of this rank to the manifest, where it has none."""
        mesh = self._manifest.process.mesh or dict(coordinates)
        self._change(lambda known: replace(known, process=replace(known.process, mesh=mesh)))

    def total_steps(self, number: int) -> None:
        """Put the number of steps that the program plans into the manifest, where it has another."""
        self._change(lambda known: replace(known, process=replace(known.process, total_steps=number)))

    def _change(self, change: Callable[[Manifest], Manifest]) -> None:
        with self._mine():
            before, self._manifest = self._manifest, change(self._manifest)
            if self._is_open and self._manifest != before:
                self._save(self._manifest, durable=False)

    def note(self, note: Note, device: int | None = None) -> None:
        """Append a note on something missing, doubtful or repaired; without *device*, on the whole rank."""
        of = array([EVERY_DEVICE if device is None else device], "i4")
        columns = [of, string_array([note.code]), string_array([note.text]), array([note.value], "i8")]
        self._write(NOTES, None, batch(NOTES, columns))

    def close(self, outcome: Outcome, error: str = "") -> None:
        """Record how the run ended and close the files; a second call does nothing.

        It waits for the disk, so that a power failure loses nothing, but at most every 30 seconds. Raises
        StoreError if something of that failed, and no call before has said so; the end is recorded all the
        same, where the disk takes anything.
        """
        with self._mine():
            if self._is_open:
                self._is_open = False
                durable = time.monotonic() - self._synced_s >= _SYNC_EVERY_S
                before = self._stopped
                ended = replace(self._manifest, outcome=outcome, ended_ns=int(time.time_ns()), error=error)
                if durable:  # first without waiting: a reader needs no disk to see the end
                    with suppress(StoreError):  # it may succeed below, where the files are closed
                        self._save_end(ended, durable=False)
                self._let_go(list(self._files), durable=durable)
                try:
                    self._save_end(ended, durable=durable)
                except StoreError:
                    self._is_open = True  # the next call tries it again
                    raise
                finally:
                    self._claim.release()
                if durable:
                    self._synced_s = time.monotonic()
                if self._stopped != before:
                    raise StoreError(self._stopped)

    def reopen(self) -> None:
        """Continue the same run: new rows are appended to the existing files."""
        with self._mine():
            if not self._is_open:
                try:
                    self._claim.hold()
                    found = manifests.read(self.path / MANIFEST)
                except (OSError, StoreError) as error:
                    self._stopped = _complaint(self.path, error) if isinstance(error, OSError) else str(error)
                    self._is_open = not isinstance(error.__cause__ or error, FileNotFoundError)
                    raise StoreError(self._stopped) from error
                if found.id != self._manifest.id:
                    raise StoreError(_complaint(self.path, OSError(errno.ESTALE, REPLACED)))
                self._is_open = True
                self._save_as(self._manifest, durable=False)

    def compact(self) -> None:
        """If the cap is reached, replace the oldest parts by a summary now, and wait for that."""
        if self._compactor is not None:
            self._compactor.compact()

    def check_place(self) -> None:
        """Raise StoreError if another directory is at the path by now."""
        try:
            self._claim.check()
        except OSError as error:
            raise StoreError(_complaint(self.path, error)) from error

    def _claimed(self) -> Claim:
        try:
            claim = Claim(self.path)
        except FileExistsError as error:
            taken = "there is a run already, and none is overwritten: record to another directory"
            raise StoreError(f"{self.path}: {taken}") from error
        except OSError as error:
            raise StoreError(_complaint(self.path, error)) from error
        try:
            self._save_as(self._manifest, durable=False)
        except StoreError:
            with suppress(OSError):
                self.path.rmdir()
            raise
        return claim

    @contextmanager
    def _mine(self) -> Iterator[None]:
        if os.getpid() != self._pid:
            raise StoreError(f"{self.path}: belongs to process {self._pid}; a fork of it cannot write there")
        with self._lock:
            yield

    def _write(self, stream: str, device: int | None, rows: pa.RecordBatch) -> None:
        with self._mine():
            if self._stopped:
                raise StoreError(self._stopped)
            if not self._is_open:
                raise StoreError(f"{self.path}: closed; reopen() continues it")
            self._stop_if_too_large()
            name = parts.file_of(self._home(stream), self.path, file_name(stream, device))
            # Counted before the write: readers then notice a batch that an exception kept from the disk.
            self._n_batches += 1
            try:
                self._claim.check()
                n_bytes = self._file(name, stream).append(rows, self._n_batches)
            except OSError as error:
                self._stopped = _complaint(self.path / name, error)
                raise StoreError(self._stopped) from error
            self._grew(stream, n_bytes)

    def _stop_if_too_large(self) -> None:
        compactor = self._compactor
        if compactor is not None and compactor.error and self.written_bytes > compactor.cap.max_bytes:
            size = format_bytes(compactor.cap.max_bytes)
            self._stopped = f"{self.path}: reached {size}, and older detail could not go: {compactor.error}"
            raise StoreError(self._stopped)

    def _home(self, stream: str) -> Path:
        return parts.part(self.path, self._part) if stream in IN_EACH_PART else self.path

    def _grew(self, stream: str, n_bytes: int) -> None:
        self.written_bytes += n_bytes
        if self._compactor is None:
            return
        if stream in IN_EACH_PART:
            self._part_bytes += n_bytes
        self._compactor.start_if_full()

    def _begin_part_if_full(self, stream: str) -> None:
        """Begin a part only before events or samples, so that marks and labels stay with their events."""
        if self._compactor is None or stream not in _BEGIN_PARTS:
            return
        with self._mine():
            is_full = self._compactor.is_full(self._part_bytes, self._part_events)
            if self._is_open and not self._stopped and is_full:
                self._begin_part(self._compactor)

    def _begin_part(self, compactor: Compactor) -> None:
        path = parts.part(self.path, self._part + 1)
        try:
            self._claim.check()
            path.mkdir()
        except OSError as error:
            self._stopped = _complaint(path, error)
            raise StoreError(self._stopped) from error
        if not self._part:
            # Saved before the part has any rows: an older reader must not take the first part for the whole.
            self._manifest = replace(self._manifest, cap=compactor.cap)
            self._save(self._manifest, durable=False)
        ended = [name for name in self._files if parts.is_in_part(Path(name).name)]
        self._let_go(ended, durable=False)
        compactor.add_complete_part(self._part, self._part_bytes)
        self._part, self._part_bytes, self._part_events = self._part + 1, 0, 0

    def _commit(self, cap: Cap, summary: Mapping[str, FileSum], n_bytes: int) -> None:
        """Make the summary and *cap* valid; the parts before it are deleted next."""
        with self._mine():
            self.written_bytes += n_bytes
            gone = {name for name in self._sums if _is_before(name, cap.first_part)}
            messages = sum(self._sums[name].messages for name in gone)
            known = self._manifest.cap.messages if self._manifest.cap is not None else 0
            kept = {name: found for name, found in self._sums.items() if name not in gone}
            self._sums = {
                **{name: found for name, found in kept.items() if not parts.is_of_summary(name)},
                **summary,
            }
            self._manifest = replace(self._manifest, cap=replace(cap, messages=known + messages))
            self._save(replace(self._saved, cap=self._manifest.cap), durable=False)

    def _freed(self, n_bytes: int) -> None:
        with self._mine():
            self.written_bytes -= n_bytes

    def _file(self, name: str, stream: str) -> SealedFile:
        file = self._files.get(name)
        if file is None:
            known, owner = self._sums.get(name), Owner(self._manifest.id, name)
            is_new = name not in self._begun
            self._begun.add(name)
            file = self._files[name] = SealedFile(
                self.path / name, owner, stream, known, place=self._places.get(name), is_new=is_new
            )
            self._sums.pop(name, None)
            if known is None:
                self._grew(stream, file.size)
        return file

    def _let_go(self, names: Sequence[str], *, durable: bool) -> None:
        for name in names:
            file = self._files.pop(name)
            self._sums[name], self._places[name] = file.sum, file.place
            try:
                file.close(durable=durable)
            except OSError as error:
                self._stopped = self._stopped or _complaint(self.path / name, error)

    def _save_end(self, ended: Manifest, *, durable: bool) -> None:
        """Save how the run ended, in the space of the last manifest where there is no other.

        Raises StoreError where not even that can be written, and only a name tells it.
        """
        try:
            self._save(replace(ended, stopped=self._stopped), durable=durable)
        except StoreError as error:
            self._stopped = self._stopped or str(error)
            ended = replace(ended, stopped=self._stopped, files=self._all_sums())
            try:
                place = self._claim.descriptor()
                manifests.write_in_place(self._manifest_file, ended, self._manifest_bytes, place)
            except OSError as refused:
                with suppress(OSError):  # the next call tries again to write it
                    manifests.write_as_name(ended, refused, self._claim.descriptor())
                raise StoreError(self._stopped) from error
            self._saved = ended

    def _save(self, manifest: Manifest, *, durable: bool) -> None:
        self.check_place()
        self._save_as(manifest, durable=durable)

    def _all_sums(self) -> Mapping[str, FileSum]:
        return self._sums | {name: file.sum for name, file in self._files.items()}

    def _save_as(self, manifest: Manifest, *, durable: bool) -> None:
        path = self.path / MANIFEST
        try:
            manifest = replace(manifest, files=self._all_sums())
            n_bytes = manifests.write(path, manifest, durable=durable, own=self._manifest_file)
        except OSError as error:
            raise StoreError(_complaint(path, error)) from error
        self.written_bytes += n_bytes - self._manifest_bytes
        self._saved, self._manifest_bytes = manifest, n_bytes


def _is_before(file: str, first_part: int) -> bool:
    number = parts.number_of(file)
    return number is not None and number < first_part


def _complaint(path: Path, error: OSError) -> str:
    advice = _ADVICE.get(errno.errorcode.get(error.errno or 0, ""), "record to another directory")
    return f"{path}: cannot write ({error.strerror}); {advice}"
