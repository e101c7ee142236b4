"""Notes on missing, cut, damaged or foreign files of a trace, and on what that means for the figures."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from vramscope.model.codes import NoteCode
from vramscope.model.marks import Note
from vramscope.model.recording import Outcome
from vramscope.package_data import words
from vramscope.store.framing import StreamFile
from vramscope.store.integrity import FileSum
from vramscope.store.manifest import Manifest
from vramscope.store.schema import SUFFIX
from vramscope.units import format_bytes

_MEANS = words(__file__, "completeness.tsv", "stream")
"""Maps a stream to what its loss means."""


def damage_notes(files: Sequence[StreamFile], outcome: Outcome) -> Iterator[Note]:
    """Yield notes on what could not be read; an unfinished end is normal while the file is written."""
    for file in files:
        end = f"{file.path.parent.name}/{file.path.name} at byte {file.offset}"
        lost = format_bytes(file.unfinished_bytes)
        if file.damage:
            text = f"{end}: {file.damage}; the {lost} from there on were not read: {_meaning(file.path.name)}"
            yield Note(NoteCode.DAMAGED, text, file.unfinished_bytes, stream_of(file.path.name))
        elif file.unfinished_bytes and outcome is not Outcome.RUNNING:
            text = f"{end}: the last batch was never finished; its {lost} were dropped"
            yield Note(NoteCode.TRUNCATED, text, file.unfinished_bytes)


def missing_notes(
    manifest: Manifest, files: Mapping[str, StreamFile], outcome: Outcome, names: Sequence[str]
) -> Iterator[Note]:
    """Yield notes on what the manifest lists for *names* and *files* (by path in the rank's directory) lack.

    A closed trace holds exactly what its manifest lists; a killed process had written at least that.
    """
    for name in names:
        known, file = manifest.files[name], files.get(name)
        if file is None or not file.size():
            if known.rows:
                text = f"{name} is missing, with {known.rows:,} rows: {_meaning(name)}"
                yield Note(NoteCode.MISSING_FILE, text, known.rows, stream_of(name))
        elif not file.damage:
            yield from _cut(name, known, file, is_closed=outcome is not Outcome.DIED)


def _cut(name: str, known: FileSum, file: StreamFile, *, is_closed: bool) -> Iterator[Note]:
    n_rows = file.sum.rows
    if n_rows < known.rows:
        text = f"{name} is cut: {known.rows - n_rows:,} of {known.rows:,} rows are missing: {_meaning(name)}"
        yield Note(NoteCode.CUT_FILE, text, known.rows - n_rows, stream_of(name))
    elif is_closed and file.sum != known and not file.unfinished_bytes:
        text = f"{name} does not end as it did when the recording was closed: {_meaning(name)}"
        yield Note(NoteCode.CHANGED_FILE, text, n_rows - known.rows, stream_of(name))


def gap_note(manifest: Manifest, files: Sequence[StreamFile]) -> Iterator[Note]:
    """Yield a note on missing or doubled batches of a killed process; numbers run over all files."""
    if any(file.damage for file in files):
        return
    n_there = sum(file.sum.messages for file in files)
    n_there += manifest.cap.messages if manifest.cap is not None else 0
    n_missing = max((file.last_number for file in files), default=0) - n_there
    if n_missing > 0:
        text = (
            f"{n_missing:,} batches or more that were written are missing: a file of this recording is lost "
            "or cut, so every figure may be incomplete"
        )
        yield Note(NoteCode.MISSING_BATCHES, text, n_missing)
    elif n_missing < 0:
        text = f"{-n_missing:,} batches occur twice: files of this recording were copied over others"
        yield Note(NoteCode.DOUBLED_BATCHES, text, -n_missing)


def unreachable_note(n_parts: int) -> Iterator[Note]:
    """Yield a note on parts of the trace that follow a missing part."""
    if n_parts:
        text = (
            f"{n_parts:,} parts of the recording follow a missing one and were not read: {_MEANS['events']}"
        )
        yield Note(NoteCode.MISSING_PART, text, n_parts)


def manifest_notes(manifest: Manifest, directory: Path) -> Iterator[Note]:
    """Yield notes on a changed or old manifest, and on a renamed directory."""
    if manifest.is_changed:
        text = (
            f"{directory.name}/manifest.json differs from what was written: it is damaged or was edited, and "
            "the device, versions and end that it names may be wrong"
        )
        yield Note(NoteCode.DAMAGED, text)
    if not manifest.id:
        text = (
            "this recording carries no checksums (it is of an older vramscope): damage to its files "
            "cannot be distinguished from recorded data"
        )
        yield Note(NoteCode.NO_CHECKSUMS, text)
    rank = f"rank{manifest.process.rank}"
    if directory.name.startswith("rank") and directory.name[4:].isdigit() and directory.name != rank:
        text = f"the directory {directory.name} holds rank {manifest.process.rank}: it was renamed or copied"
        yield Note(NoteCode.OTHER_RANK, text, manifest.process.rank)


def stream_of(file: str) -> str:
    """Return the stream of a file from its name or path."""
    return file.rpartition("/")[2].removesuffix(SUFFIX).rpartition("-")[0] or file.removesuffix(SUFFIX)


def _meaning(file: str) -> str:
    return _MEANS.get(stream_of(file), "its content is unknown")
