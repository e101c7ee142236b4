"""How much may this process reserve, by what the recording says?"""

from vramscope.model.codes import NoteCode
from vramscope.model.recording import Recording


def recorded_limit(recording: Recording) -> int | None:
    """Return what ``set_per_process_memory_fraction`` allowed, in bytes; None where nothing says so.

    The last note counts: a message of torch gives it to two decimals.
    """
    return next((note.value for note in reversed(recording.notes) if note.code == NoteCode.LIMIT), None)
