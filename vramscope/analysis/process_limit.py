"""Reads the memory limit of the process from a recording."""

from vramscope.model.recording import Recording


def recorded_limit(recording: Recording) -> int | None:
    """The bytes that ``set_per_process_memory_fraction`` allowed; None where the recording has no such note.

    The last note counts: a message of torch gives the limit to two decimals only.
    """
    return next((note.value for note in reversed(recording.notes) if note.code == "limit"), None)
