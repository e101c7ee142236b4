"""The limit of reserved bytes that the recorded process had set for itself."""

from collections.abc import Sequence

from vramscope.model.codes import NoteCode
from vramscope.model.marks import Note
from vramscope.model.recording import Recording


def recorded_limit(recording: Recording) -> int | None:
    """Return the bytes that ``set_per_process_memory_fraction`` allowed; None if no limit is recorded.

    The last note counts. A limit from torch's message is rounded to two decimals.
    """
    return last_limit(recording.notes)


def last_limit(notes: Sequence[Note]) -> int | None:
    """Return the same from the notes of a recording."""
    return next((note.value for note in reversed(notes) if note.code == NoteCode.LIMIT), None)
