"""At which instants is one turn of the program like the next?

The ends of its steps, where it is known where they are. In a file without marks: where its optimizer is done;
else an allocation that comes again and again at regular distances stands for the loop.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.model.marks import Phase
from vramscope.model.recording import Recording
from vramscope.model.stacks import Stacks
from vramscope.model.trace import Action

_LEAST_TURNS = 6
_MOST_TURNS = 100_000
# How much the distances of turns may differ, as their standard deviation over their mean.
_MOST_IRREGULAR = 0.35
_MOST_COUNTS, _MOST_STACKS = 5, 100
_LEAST_OF_FILE = 0.6
_LEAST_FREED, _MOST_FREED = 0.4, 1.1


def turns(recording: Recording) -> tuple[NDArray[Any], bool]:
    """Instants, in order, and whether they are of known steps; empty where there is no loop to be seen."""
    # Of a ring the beginning is lost: its marks are still there, all at the first instant.
    ends, n_events = recording.steps.end_event[recording.steps.end_event > 0], len(recording.trace)
    if len(ends) >= _LEAST_TURNS:
        # The last step is often cut short: by the end of the program, or because it still runs. And what
        # comes after the loop looks like one.
        is_open = len(ends) > 1 and ends[-1] >= n_events and (_is_short(ends) or _lacks_a_phase(recording))
        return np.minimum(ends[:-1] if is_open else ends, n_events), True
    return _inferred(recording), False


def _is_short(ends: NDArray[Any]) -> bool:
    lengths = np.diff(ends)
    return bool(lengths[-1] < 0.8 * np.median(lengths))


def _lacks_a_phase(recording: Recording) -> bool:
    """Whether the last step has no optimizer or backward, though those before it have."""
    phases, last = recording.phases, len(recording.steps) - 1
    for phase in (Phase.OPTIMIZER, Phase.BACKWARD):
        has = np.isin(np.arange(len(recording.steps)), phases.step[phases.phase == phase])
        if has[max(last - 3, 0) : last].all() and not has[last]:
            return True
    return False


def _inferred(recording: Recording) -> NDArray[Any]:
    """Where the optimizer is done; else the most regular births of a stack outside of modules.

    Not within a module: one forward through 32 equal layers looks like a loop too, and keeps what backward
    will need.
    """
    allocs = np.flatnonzero(recording.trace.action == Action.ALLOC)
    stack_id = recording.trace.stack_id[allocs]
    in_optimizer, in_module = _kinds(recording.stacks)
    inside = in_optimizer[stack_id]
    ends = allocs[1:][inside[:-1] & ~inside[1:]]
    if len(ends) >= _LEAST_TURNS and _frees_what_it_takes(recording, ends):
        found: NDArray[Any] = ends
        return found
    usable = ~inside & ~in_module[stack_id] & (stack_id != 0)
    return _recurring(recording, allocs[usable])


def _frees_what_it_takes(recording: Recording, events: NDArray[Any]) -> bool:
    """A step frees most of what it allocates; building a model, going forward or backward layer by layer do
    not, and recur as regularly."""
    trace = recording.trace
    turn = np.searchsorted(events, np.arange(len(trace)), side="right")

    def by_turn(action: Action) -> NDArray[Any]:
        mine = trace.action == action
        return np.bincount(turn[mine], weights=trace.block_size[mine], minlength=len(events) + 1)[1:-1]

    taken, freed = by_turn(Action.ALLOC), by_turn(Action.FREE_COMPLETED)
    share = freed / np.maximum(taken, 1)
    # The layers of one forward fill a part of a step, a loop of steps the file.
    is_whole = events[-1] - events[0] >= _LEAST_OF_FILE * len(trace)
    return bool(is_whole and _LEAST_FREED <= np.median(share) <= _MOST_FREED)


def _kinds(stacks: Stacks) -> tuple[NDArray[Any], NDArray[Any]]:
    """Of each stack: whether an optimizer's step is under way, and whether a module's call is."""
    strings = stacks.strings
    is_step = np.array([text == "step" for text in strings], bool)[stacks.function]
    is_step &= np.array(["optim" in text for text in strings], bool)[stacks.file]
    is_call = np.array([text.endswith("_call_impl") for text in strings], bool)[stacks.function]
    # Parents precede their children.
    for row, parent in enumerate(stacks.parent.tolist()):
        if row:
            is_step[row] |= is_step[parent]
            is_call[row] |= is_call[parent]
    return is_step, is_call


def _recurring(recording: Recording, allocs: NDArray[Any]) -> NDArray[Any]:
    """The births of one stack; of those that recur, among the ones that account for most bytes."""
    stack_id = recording.trace.stack_id[allocs]
    known, group, count = np.unique(stack_id, return_inverse=True, return_counts=True)
    usual = (count >= _LEAST_TURNS) & (count <= _MOST_TURNS)
    if not usual.any():
        return np.zeros(0, "i8")
    n_bytes = np.bincount(group.reshape(-1), weights=recording.trace.block_size[allocs])
    # How often a turn comes: a count that many bytes have in common. Blocks in pairs count twice.
    counts, of = np.unique(count[usual], return_inverse=True)
    weight = np.bincount(of.reshape(-1), weights=n_bytes[usual])
    for wanted in counts[np.argsort(-weight)[:_MOST_COUNTS]].tolist():
        candidates = known[usual & (count == wanted)][:_MOST_STACKS].tolist()
        best: NDArray[Any] = min((allocs[stack_id == each] for each in candidates), key=_irregularity)
        if _irregularity(best) <= _MOST_IRREGULAR and _frees_what_it_takes(recording, best):
            return best
    return np.zeros(0, "i8")


def _irregularity(events: NDArray[Any]) -> float:
    # The first turn is longer: lazy state is made in it.
    distance = np.diff(events)[1:]
    return float(distance.std() / max(distance.mean(), 1))
