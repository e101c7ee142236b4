"""Selects recordings of a run, and pairs them with those of another run."""

from vramscope.errors import UsageError
from vramscope.model.recording import Recording, Run

_MOST_NAMED = 8


def pairs(before: Run, after: Run) -> list[tuple[Recording, Recording]]:
    """Return pairs of recordings with the same rank and device; if each run has only one, these two.

    Raises UsageError if no recordings form a pair.
    """
    if len(before.recordings) == len(after.recordings) == 1:
        return [(before.recordings[0], after.recordings[0])]
    known = {_key(recording): recording for recording in before.recordings}
    found = [(known[_key(each)], each) for each in after.recordings if _key(each) in known]
    if not found:
        raise UsageError(f"{before.path} and {after.path} have no rank and device in common")
    return found


def alone(before: Run, after: Run) -> tuple[list[Recording], list[Recording]]:
    """Return the recordings of each run whose rank and device the other run does not have."""
    found = pairs(before, after)
    paired = {id(each) for pair in found for each in pair}
    left, added = ([each for each in run.recordings if id(each) not in paired] for run in (before, after))
    return left, added


def chosen(run: Run, rank: int | None, device: int | None) -> tuple[Recording, ...]:
    """Return the recordings of *rank* and *device*; None means all. Raises UsageError if there are none."""
    found = tuple(
        each
        for each in run.recordings
        if rank in (None, each.process.rank) and device in (None, each.device.index)
    )
    if run.recordings and not found:
        known = ", ".join(f"rank {r}, device {d}" for r, d, _ in map(_key, run.recordings[:_MOST_NAMED]))
        more = ", ..." if len(run.recordings) > _MOST_NAMED else ""
        raise UsageError(f"{run.path}: it does not have that rank or device; it has {known}{more}")
    return found


def _key(recording: Recording) -> tuple[int, int, str]:
    return recording.process.rank, recording.device.index, recording.run_words
