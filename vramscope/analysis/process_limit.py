"""The limit of reserved bytes that the recorded process had set for itself."""

from vramscope.model.codes import NoteCode
from vramscope.model.recording import Recording


def recorded_limit(recording: Recording) -> int | None:
    """Return the bytes that ``set_per_process_memory_fraction`` allowed; None if no limit is recorded.

    The last note counts. A limit from torch's message is rounded to two decimals.
    """
    return next((note.value for note in reversed(recording.notes) if note.code == NoteCode.LIMIT), None)
