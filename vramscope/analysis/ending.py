"""Whether a recording ends because memory ran out."""

import numpy as np

from vramscope.model.recording import Recording
from vramscope.model.trace import Action


def ended_short(recording: Recording) -> bool:
    """Return whether no allocation succeeded after the last one that failed."""
    action = recording.trace.action
    failed, made = (np.flatnonzero(action == each) for each in (Action.OOM, Action.ALLOC))
    return bool(len(failed)) and (not len(made) or int(failed[-1]) > int(made[-1]))
