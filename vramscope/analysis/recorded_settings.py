"""The allocator settings under which a recording was made, and the limit that its process had set."""

from collections.abc import Sequence
from dataclasses import replace

from vramscope.allocator.settings import Settings
from vramscope.model.codes import NoteCode
from vramscope.model.marks import Note
from vramscope.model.recording import Recording
from vramscope.model.snapshot import Snapshot


def recorded_settings(recording: Recording, state: Snapshot) -> Settings:
    """Return the allocator settings of *recording*, as its source or the segments of *state* show them."""
    process = recording.process
    settings = Settings.from_snapshot(process.allocator, torch=process.torch)
    if state.segments.is_expandable.any():  # torch before 2.3 reports no settings, but that shows
        return replace(settings, expandable_segments=True)
    return settings


def recorded_limit(recording: Recording) -> int | None:
    """Return the bytes that ``set_per_process_memory_fraction`` allowed; None if no limit is recorded.

    The last note counts. A limit from torch's message is rounded to two decimals.
    """
    return last_limit(recording.notes)


def last_limit(notes: Sequence[Note]) -> int | None:
    """Return the same from the notes of a recording."""
    return next((note.value for note in reversed(notes) if note.code == NoteCode.LIMIT), None)
