"""Reads the directory of one rank, and finds out whether it is still written."""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from vramscope.columns.scratch import Scratch
from vramscope.model.codes import NoteCode
from vramscope.model.device import HOST
from vramscope.model.marks import Note
from vramscope.model.recording import Outcome, Recording
from vramscope.steps import StepFinder
from vramscope.store import manifest as manifests
from vramscope.store import parts, prediction, sources
from vramscope.store.directory import COPY_INDEX, MANIFEST
from vramscope.store.framing import StreamFile
from vramscope.store.integrity import SUMMARY, Owner
from vramscope.store.liveness import is_alive
from vramscope.store.read import assembly, completeness
from vramscope.store.read.streams import ColumnStream, DeviceStreams, FileChain
from vramscope.store.schema import EVERY_DEVICE, NOTES, STACKS, device_of, file_name

_STILL_WRITING_S = 10.0
"""The time after its last growth for which a trace counts as running if its process is not visible."""
_STILL_UPLOADING_S = 180.0
"""The same for the copy of a trace in an object store, where a running process uploads each minute."""

_MOST_RETRIES = 20
"""The most attempts of one refresh.

On a busy machine a tight cap took parts in four attempts in a row, in one refresh of some hundred; in 20
attempts in none.
"""


class RankReader:
    """Reads the directory of one rank as far as it is written."""

    def __init__(self, directory: Path, scratch: Scratch | None = None) -> None:
        """Open *directory*; a run that grows is kept in *scratch*.

        Raises StoreError if the manifest cannot be read.
        """
        self.directory = directory
        self._version = self._manifest_version()
        self.manifest = manifests.read(directory / MANIFEST)
        self.outcome = self.manifest.outcome
        self._grew_at = float("-inf")
        self._is_settled = False
        """Whether the manifest did not change while the files were read, twice where they seem damaged."""
        self._damage: list[StreamFile] = []
        """The files that seemed damaged when they were last read, as they were read."""
        self._devices: dict[int, DeviceStreams] = {}
        self._finders: dict[int, StepFinder] = {}
        """What has found the steps of each device so far."""
        self._homes: list[Path] = []
        # Row 0 is the empty stack, and is not written.
        self._stacks = ColumnStream(self._files_of(STACKS), STACKS, n_rows=1)
        self._notes = ColumnStream(self._files_of(NOTES), NOTES)
        # Of a run that is opened late, the first reading is the longest column that will ever be copied.
        self._scratch = scratch.growing() if scratch is not None and self.is_running() else scratch

    def refresh(self) -> bool:
        """Read what was written since; return whether anything is new or changed."""
        was_settled, self._is_settled, changed = self._is_settled, False, False
        for _ in range(1 + _MOST_RETRIES):
            changed |= self._refresh_once()
            before = self._damage
            self._damage = [replace(file) for file in self._all_files().values() if file.damage]
            # Parts that are deleted while they are read look damaged: their summary is read instead.
            self._is_settled = self._damage == before and self._manifest_version() == self._version
            if self._is_settled:
                break
        return changed or self._is_settled is not was_settled

    def _refresh_once(self) -> bool:
        # The outcome is read before the streams: once the run has ended, they are complete.
        changed = [
            self._refresh_manifest(),
            self._refresh_outcome(),
            self._find_parts(),
            self._find_devices(),
        ]
        # Stacks are read last: rows that refer to them are written after them, so must be read before them.
        grew = [stream.refresh() for stream in self._devices.values()]
        grew += [self._notes.refresh(), self._stacks.refresh()]
        if any(grew):
            self._grew_at = time.monotonic()
        return any(grew) or any(changed)

    @property
    def has_devices(self) -> bool:
        """Return whether there is any recording."""
        return bool(self._devices)

    def recordings(self) -> list[Recording]:
        """Return one recording per device, ordered by index."""
        stacks, stack_notes = assembly.stacks_of(self._stacks)
        predicted, unreadable = prediction.read(self.directory, self.manifest.id)
        of_rank = (*self.notes(), *stack_notes, *unreadable)
        kept = sources.read(self.directory / sources.SOURCES_FILE, self.manifest.id)
        found = []
        for device, streams in sorted(self._devices.items()):
            ended, finder = (self.ended_ns(), self.outcome), self._finders[device]
            recording = assembly.recording(self.manifest, device, streams, stacks, ended, finder)
            written = assembly.written_notes(self._notes, device)
            own = (
                *written,
                *self._damaged(streams.files()),
                *self._missing(device),
                *assembly.limit_notes(self.manifest.error, device, written),
            )
            notes = of_rank + own + recording.notes
            facts: dict[str, Any] = {"outcome": self.outcome, "prediction": predicted, "sources": kept}
            found.append(replace(recording, notes=notes, **facts))
        if HOST in self._devices and len(found) > 1:
            host = found.pop()
            found[0] = replace(found[0], pinned=host)
        return found

    def notes(self) -> list[Note]:
        """Return the notes on the whole rank, which each of its recordings contains."""
        found = assembly.written_notes(self._notes, EVERY_DEVICE)
        of_rank = [*self._notes.chain.files, *self._stacks.chain.files]
        found += completeness.manifest_notes(self.manifest, self.directory)
        found += self._damaged(of_rank)
        found += self._missing(None)
        if self.outcome is not Outcome.RUNNING:
            found += completeness.unreachable_note(parts.unreachable(self.directory, self.manifest.cap))
        if self.outcome is Outcome.DIED:
            found += completeness.gap_note(self.manifest, list(self._all_files().values()))
        if self.manifest.stopped:
            found.append(Note(NoteCode.STOPPED, f"writing stopped before the end: {self.manifest.stopped}"))
        if self.outcome is Outcome.DIED:
            found.append(assembly.obituary(self.manifest.started_ns, self.ended_ns()))
        return found

    def _damaged(self, files: Sequence[StreamFile]) -> Iterator[Note]:
        # What was read between two states of the files is neither: the next refresh reads it again.
        return completeness.damage_notes(files if self._is_settled else (), self.outcome)

    def _missing(self, device: int | None) -> list[Note]:
        # While the trace is written, the files are ahead of the manifest.
        if self.outcome is Outcome.RUNNING or not self._is_settled:
            return []
        names = [name for name in self.manifest.files if device_of(name.rpartition("/")[2]) == device]
        return list(completeness.missing_notes(self.manifest, self._all_files(), self.outcome, names))

    def _all_files(self) -> dict[str, StreamFile]:
        chains = [*self._notes.chain.files, *self._stacks.chain.files]
        chains += [file for streams in self._devices.values() for file in streams.files()]
        return {parts.file_of(file.path.parent, self.directory, file.path.name): file for file in chains}

    def _owner_of(self, path: Path) -> Owner:
        home = path.parent
        is_summary = home.name.startswith(SUMMARY) and home != self.directory
        name = f"{SUMMARY}/{path.name}" if is_summary else parts.file_of(home, self.directory, path.name)
        return Owner(self.manifest.id, name)

    def _files_of(self, stream: str) -> FileChain:
        return FileChain([self.directory], file_name(stream), self._owner_of)

    def ended_ns(self) -> int:
        """Return the time of the last row written; 0 if there is none."""
        last = (streams.last_ns() for streams in self._devices.values())
        return self.manifest.ended_ns or max(last, default=0)

    def _manifest_version(self) -> tuple[int, ...]:
        with suppress(OSError):
            status, home = (self.directory / MANIFEST).stat(), self.directory.stat()
            return status.st_ino, status.st_mtime_ns, status.st_size, home.st_mtime_ns
        return ()

    def _refresh_manifest(self) -> bool:
        # The version is read first: a manifest that is replaced in between is then read again, not missed.
        version = self._manifest_version()
        if version == self._version:
            return False
        self.manifest = manifests.read(self.directory / MANIFEST)
        self._version = version
        return True

    def _refresh_outcome(self) -> bool:
        before, self.outcome = self.outcome, self.manifest.outcome
        if self.outcome is Outcome.RUNNING and not self._is_written():
            self.outcome = Outcome.DIED
        return self.outcome is not before

    def is_running(self) -> bool:
        """Return whether the process still writes, as far as can be found out without reading events."""
        return self.manifest.outcome is Outcome.RUNNING and self._is_written()

    def _is_written(self) -> bool:
        process = self.manifest.process
        alive = is_alive(process.host, process.pid, self.manifest.incarnation)
        return self._grew_lately() if alive is None else alive

    def _grew_lately(self) -> bool:
        last = 0.0
        for home in {self.directory, *self._homes[-1:]}:
            with suppress(OSError):
                last = max(last, *(path.stat().st_mtime for path in home.iterdir()))
        # Another machine's clock may differ from this one's, so growth that this reader saw counts too.
        age_s = min(abs(time.time() - last), time.monotonic() - self._grew_at)
        is_copy = (self.directory / COPY_INDEX).exists()
        return age_s < (_STILL_UPLOADING_S if is_copy else _STILL_WRITING_S)

    def _find_parts(self) -> bool:
        """Add the parts that were begun since; read everything again if parts were deleted."""
        homes = parts.homes(self.directory, self.manifest.cap)
        new = homes[len(self._homes) :]
        if homes[: len(self._homes)] == self._homes:
            for streams in self._devices.values():
                for home in new:
                    streams.go_on_in(home)
        else:
            self._devices.clear()
        is_other, self._homes = homes != self._homes, homes
        return is_other

    def _find_devices(self) -> bool:
        with_files = (device_of(path.name) for path in self.directory.iterdir())
        known = {device.index for device in self.manifest.devices}
        new = (known | {device for device in with_files if device is not None}) - self._devices.keys()
        deleted_events = self.manifest.cap.events if self.manifest.cap is not None else {}
        for device in new:
            self._devices[device] = DeviceStreams(
                self.directory,
                self._homes,
                device,
                deleted_events.get(device, 0),
                self._owner_of,
                self._scratch,
            )
            self._finders[device] = StepFinder(self._scratch)
        return bool(new)
