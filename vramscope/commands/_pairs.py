"""Which recording of one run belongs to which of another?"""

from vramscope.errors import UsageError
from vramscope.model.recording import Recording, Run


def pairs(before: Run, after: Run) -> list[tuple[Recording, Recording]]:
    """By rank and device; where each run has just one, these. Raises UsageError where nothing belongs."""
    if len(before.recordings) == len(after.recordings) == 1:
        return [(before.recordings[0], after.recordings[0])]
    known = {_key(recording): recording for recording in before.recordings}
    found = [(known[_key(each)], each) for each in after.recordings if _key(each) in known]
    if not found:
        raise UsageError(f"{before.path} and {after.path} have no rank and device in common")
    return found


def _key(recording: Recording) -> tuple[int, int]:
    return recording.process.rank, recording.device.index
