"""Finds the instants at which one iteration of the program ends and the next, similar one begins.

They are the ends of steps, if these are known. In a file without steps an iteration counts only if the stacks
show a training loop: an optimizer's step or a backward, and a module's forward, called alternately from one
function. Anything else that recurs may be layers: one step of 24 equal layers has 24 equal repetitions, each
of which keeps what backward needs.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.folding import Origin, files_ending, functions_named, origin, with_callees
from vramscope.model.marks import Category, MarkKind, Phase, Steps
from vramscope.model.recording import Outcome, Recording
from vramscope.model.stacks import Stacks
from vramscope.model.table import Array
from vramscope.model.trace import Action
from vramscope.steps.unrecorded import unrecorded

_LEAST_ITERATIONS = 6
LEAST_SHARE_OF_FILE = 0.6
"""Share of a file below which iterations are a part of something larger. Loops of tests/leaks fill 0.6 to 1.0
of it, except two of 10 steps after a long start (0.46, 0.49), which get no verdict."""
LEAST_FREED, MOST_FREED = 0.4, 1.1
"""Share of an iteration's allocated bytes that it frees, by its median: 0.8 to 1.0 in clean loops of
tests/leaks, 0.0 to 1.0 in leaking ones. A forward frees next to nothing, so less than 0.4 gets no verdict."""
_AUTOGRAD = ("torch/_tensor.py", "torch/autograd/__init__.py")
_MOST_SHORT = 0.8
"""Share of the usual events below which the last step is incomplete: cut off by the end, or still running."""


def iteration_boundaries(recording: Recording) -> tuple[Array, bool]:
    """Return the boundaries of iterations as instants, in order, and whether they are those of known steps.

    Empty if the recording shows no training loop.
    """
    # A ring loses its beginning: the marks of that part remain, all at the first instant.
    steps, n_events = steps_with_events(recording), len(recording.trace)
    ends = steps.end_event[steps.end_event > 0]
    if not len(recording.steps):
        return _inferred(recording), False
    if len(recording.steps) == 1 and len(backward := _lone_backwards(recording)) >= _LEAST_ITERATIONS:
        return backward, False
    if not _are_steps(recording, ends):
        return np.zeros(0, "i8"), False
    if len(ends) >= _LEAST_ITERATIONS:
        # The last step is often incomplete: cut off by the end of the program, or still running. And what
        # follows the loop looks like a step.
        lengths = np.diff(ends)
        is_short = bool(lengths[-1] < _MOST_SHORT * np.median(lengths))
        is_open = ends[-1] >= n_events and (is_short or _lacks_a_phase(recording))
        ends = ends[:-1] if is_open else ends
    return np.minimum(ends, n_events), True


def may_be_layers(recording: Recording, *, is_being_made: bool = False) -> bool:
    """Return whether all forwards may be of one step that ended early: no backward came, nothing names steps.

    A program that calls 24 layers by itself, or a cell for each word, keeps what each saves until then. An
    inference gives most of its forwards an input of its own, which is no result of the one before: those are
    of one expression where what grows *is_being_made* by it, as by a list comprehension.
    """
    kind, phases = recording.marks.kind, recording.phases
    is_named = (kind == MarkKind.STEP).any() or (kind == MarkKind.ENTER).sum() > 1
    is_whole = recording.outcome in (Outcome.FINISHED, Outcome.FILE)
    n_forwards = np.count_nonzero((phases.phase == Phase.FORWARD) & (phases.depth == 0))
    is_fed = 2 * np.count_nonzero(recording.labels.category == Category.INPUT) > n_forwards
    trains = np.isin(phases.phase, (Phase.BACKWARD, Phase.OPTIMIZER)).any()
    is_one_step = bool(n_forwards) and not (is_whole or is_fed)
    return bool(not (trains or is_named) and (is_being_made or is_one_step))


def steps_with_events(recording: Recording) -> Steps:
    """Return the steps that have all of their events."""
    steps, bare = recording.steps, unrecorded(recording)
    return steps.rows(~bare.overlap(steps.start_ns, steps.end_ns)) if len(bare) else steps


def between_steps_with_events(recording: Recording, events: Array) -> NDArray[np.bool_]:
    """Return whether each event comes after a step with all events, and before the next such step.

    It belongs to a step of which a part is known at most: only what whole steps keep is compared.
    """
    if not len(unrecorded(recording)):
        return np.zeros(len(events), "?")
    steps = steps_with_events(recording)
    row = np.searchsorted(steps.start_event, events, side="right") - 1
    return (row >= 0) & (events >= np.append(steps.end_event, 0)[row])


def _lone_backwards(recording: Recording) -> Array:
    """Return the ends of the backwards, if the program shows nothing else: no forward, no optimizer."""
    phases = recording.phases
    outermost = phases.rows((phases.depth == 0) & ~np.isin(phases.phase, (Phase.USER, Phase.LOSS)))
    if (outermost.phase == Phase.BACKWARD).all():
        return outermost.end_event
    return np.zeros(0, "i8")


def _are_steps(recording: Recording, ends: Array) -> bool:
    """Return whether each step has a forward.

    A file may have annotations of optimizers only, and 24 layers with an optimizer each have 24 of them in
    one backward.
    """
    kind, phase = recording.marks.kind, recording.marks.phase
    of_optimizers = (kind == MarkKind.PHASE_BEGIN) & (phase == Phase.OPTIMIZER)
    is_marked = np.isin(kind, (MarkKind.STEP, MarkKind.ENTER)).any() or not of_optimizers.any()
    if recording.source != "snapshot" or is_marked or len(ends) < _LEAST_ITERATIONS:
        return True
    stacks = _loop_stacks(recording.stacks)
    allocs = np.flatnonzero(recording.trace.action == Action.ALLOC)
    stack_id = recording.trace.stack_id[allocs]
    return bool(_in_all_iterations(stacks, stack_id, np.searchsorted(allocs, ends) - 1))


def _lacks_a_phase(recording: Recording) -> bool:
    """Return whether the last step lacks an optimizer or backward that the steps before it have."""
    phases, last = recording.phases, len(recording.steps) - 1
    for phase in (Phase.OPTIMIZER, Phase.BACKWARD):
        has = np.isin(np.arange(len(recording.steps)), phases.step[phases.phase == phase])
        if has[max(last - 3, 0) : last].all() and not has[last]:
            return True
    return False


def _inferred(recording: Recording) -> Array:
    """Return the ends of optimizer steps, else the starts of backwards, if a forward precedes each."""
    allocs = np.flatnonzero(recording.trace.action == Action.ALLOC)
    stack_id = recording.trace.stack_id[allocs]
    stacks = _loop_stacks(recording.stacks)
    # SGD allocates nothing, so its steps leave no trace.
    for of_anchor in (stacks.in_optimizer, stacks.in_backward):
        inside = of_anchor[stack_id]
        last = np.flatnonzero(inside[:-1] & ~inside[1:])
        ends: Array = allocs[last + 1]
        if len(ends) >= _LEAST_ITERATIONS and _is_loop(stacks, stack_id, last):
            return ends if _frees_what_it_takes(recording, ends) else ends[:0]
    return np.zeros(0, "i8")


class _LoopStacks(NamedTuple):
    """The part of a training loop that runs in each stack."""

    stacks: Stacks
    in_optimizer: Array
    in_forward: Array
    """Whether a module is called, except a recompute within backward."""
    in_backward: Array
    """Whether a backward is called: on CUDA only the first gradient is allocated there."""

    def callers(self, stack_id: int) -> frozenset[tuple[int, int]]:
        """Return the functions (file, name) outside of torch that called optimizer, module or backward."""
        file, name, parent = self.stacks.file, self.stacks.function, self.stacks.parent
        found: set[tuple[int, int]] = set()
        while stack_id:
            if self.in_optimizer[stack_id] or self.in_forward[stack_id] or self.in_backward[stack_id]:
                found.clear()
            elif origin(self.stacks.strings[file[stack_id]]) not in (Origin.TORCH, Origin.RUNTIME):
                found.add((int(file[stack_id]), int(name[stack_id])))
            stack_id = int(parent[stack_id])
        return frozenset(found)


def _is_loop(stacks: _LoopStacks, stack_id: Array, last: Array) -> bool:
    """Return whether one function calls what ends an iteration and, in every iteration, the same forward."""
    in_all = _in_all_iterations(stacks, stack_id, last)
    enders = [stacks.callers(row) for row in np.unique(stack_id[last[1:]]).tolist()]
    shared = frozenset.intersection(*enders)
    return any(shared & stacks.callers(row) for row in in_all)


def _in_all_iterations(stacks: _LoopStacks, stack_id: Array, last: Array) -> list[int]:
    """Return the stacks of a forward in every iteration but the first; *last* is the last row of each."""
    forward = np.flatnonzero(stacks.in_forward[stack_id])
    begin = np.searchsorted(forward, last, side="right").tolist()
    # A pass over each iteration: a sort of 250,000 pairs of stack and iteration takes 8 times as long.
    n_iterations = np.zeros(len(stacks.in_forward), "i8")
    for turn, (first, end) in enumerate(pairwise(begin)):
        mine = stack_id[forward[first:end]]
        n_iterations[mine[n_iterations[mine] == turn]] = turn + 1
    return np.flatnonzero(n_iterations == max(len(last) - 1, 1)).tolist()


def _frees_what_it_takes(recording: Recording, events: Array) -> bool:
    """Return whether iterations free most of what they allocate, as steps do.

    Building a model, or going forward or backward layer by layer, recurs as regularly, but does not.
    """
    trace = recording.trace
    turn = np.searchsorted(events, np.arange(len(trace)), side="right")

    def by_turn(action: Action) -> Array:
        mine = trace.action == action
        return np.bincount(turn[mine], weights=trace.block_size[mine], minlength=len(events) + 1)[1:-1]

    allocated, freed = by_turn(Action.ALLOC), by_turn(Action.FREE_COMPLETED)
    share = freed / np.maximum(allocated, 1)
    # The layers of one forward fill a part of a step, a loop of steps the file.
    is_whole = events[-1] - events[0] >= LEAST_SHARE_OF_FILE * len(trace)
    return bool(is_whole and LEAST_FREED <= np.median(share) <= MOST_FREED)


def _loop_stacks(stacks: Stacks) -> _LoopStacks:
    strings = stacks.strings
    is_step = functions_named(stacks, {"step"})
    is_step &= np.array(["optim" in text for text in strings], bool)[stacks.file]
    is_call = np.array([text.endswith("_call_impl") for text in strings], bool)[stacks.function]
    is_backward = functions_named(stacks, {"backward", "grad"}) & files_ending(stacks, _AUTOGRAD)
    is_recompute = np.array(["checkpoint" in text for text in strings], bool)[stacks.file]
    for each in (is_step, is_call, is_backward, is_recompute):
        with_callees(stacks, each)
    is_call &= ~is_step & ~is_backward & ~is_recompute
    return _LoopStacks(stacks, is_step, is_call, is_backward & ~is_step & ~is_recompute)
