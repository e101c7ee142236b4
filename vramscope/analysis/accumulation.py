"""Counts the autograd graphs that a step keeps until its backward."""

from typing import Any

import numpy as np

from vramscope.analysis import asking
from vramscope.analysis.by_module import modules_at
from vramscope.analysis.categories import assign
from vramscope.analysis.categories.by_lifetime import lives_of
from vramscope.analysis.folding import heaviest_line
from vramscope.analysis.lifetimes import Allocations, lifetimes
from vramscope.analysis.timeline import timeline
from vramscope.analysis.worded import worded
from vramscope.model.codes import FindingKind
from vramscope.model.finding import Finding
from vramscope.model.marks import BackwardKeeps, Category, MarkKind, Marks, Phase
from vramscope.model.recording import Outcome, Recording
from vramscope.model.table import Array

_LEAST_FORWARDS = 3
"""Fewest forwards that count: two, for example to compare a pair, are intended."""
_LEAST_CALLS = 2
"""Fewest calls that no backward follows, where fewer graphs are kept at a time: one may be a trial."""
_LEAST_SHARE = 0.5
"""Share of the steps that must do it: a single backward is no pattern."""
_LEAST_BYTES = 1 << 20
_LEAST_OF_PEAK = 0.05


def accumulation(recording: Recording) -> list[Finding]:
    """Find forwards whose graphs are all kept until one backward, in most steps or at the peak.

    Evaluations and recomputes do not count; forwards at the peak whose graphs no backward uses come first.
    """
    counted = [group for group in _forwards(recording) if len(group[0]) >= _LEAST_FORWARDS]
    if unused := _unused(recording):
        return unused
    is_usual = bool(counted) and len(counted) >= _LEAST_SHARE * len(recording.steps)
    return (is_usual and _in_each_step(recording, counted)) or _waiting_at_peak(recording)


def _in_each_step(recording: Recording, counted: list[tuple[list[int], int]]) -> list[Finding]:
    """Return a finding on the forwards before the backward of the last step that has so many."""
    found, (rows_before, backward) = lifetimes(recording), counted[-1]
    starts, ends = recording.phases.start_event, recording.phases.end_event
    live = found.allocated_at(int(starts[backward]))
    parts = _made_in(found, starts[rows_before], ends[rows_before], live)
    n_calls = _repeated([_calls(recording, found, part) for part in parts])
    every = n_calls or len(parts)
    # What is made after a forward, and freed by this backward, is of the graph; not the next round's input.
    is_kept = live & (found.free_event >= 0) & (found.free_event < ends[backward])
    opens = np.searchsorted(starts[rows_before], found.alloc_event, side="right") % every == 0
    is_kept &= ~opens | (assign(recording, found).category != Category.INPUT)
    is_kept[np.concatenate(parts)] = True
    begins = np.append(starts[rows_before[::every]], starts[backward])
    parts = _made_in(found, begins[:-1], begins[1:], is_kept)
    return _until_one_backward(recording, parts, len(counted), n_calls)


def _until_one_backward(recording: Recording, parts: list[Array], n_steps: int, every: int) -> list[Finding]:
    """Return a finding on what each of the *parts*, of so many forwards each, keeps until a backward."""
    found, rows = lifetimes(recording), np.concatenate(parts)
    kept = [int(found.block_size[part].sum()) for part in parts]
    if sum(kept) - max(kept) < _LEAST_BYTES:
        return []
    frame = heaviest_line(recording.stacks, found.stack_id[rows], found.block_size[rows])
    evidence = {"forwards": len(parts) * every, "steps": n_steps}
    evidence |= {"kept_bytes": sum(kept), "one_forward_bytes": max(kept)}
    what = "forwards of the same call" if every == 1 else f"rounds of the same {every} forwards"
    kind, n_bytes = FindingKind.GRAPHS_BEFORE_BACKWARD, sum(kept) - max(kept)
    return [worded(kind, n_bytes, frame, evidence, waiting=f"{len(kept)} {what}")]


def _repeated(calls: list[Any]) -> int:
    """Return after how many calls the same ones come again, at least three times in all; 0 if they do not.

    Different calls are no accumulation: two towers, a discriminator of both kinds, layers of one model. Calls
    that keep nothing of their own are of no kind.
    """
    if not all(stacks for stacks, _ in calls):
        return 0
    rounds = (n for n in range(_LEAST_FORWARDS, len(calls) + 1) if len(calls) % n == 0)
    lengths = sorted(len(calls) // n for n in rounds)
    return next((n for n in lengths if calls == calls[:n] * (len(calls) // n)), 0)


def _unused(recording: Recording) -> list[Finding]:
    """Return a finding if graphs of several equal forwards are there at the peak, and no backward uses them.

    Of what a forward with gradients makes, its results alone may be kept without a graph: they come from one
    module, so each forward must keep blocks of several.
    """
    found = lifetimes(recording)
    dies, is_used = _dies_unused(recording, found), _freed_by_backward(recording, found)
    parts = _graphs_at_peak(recording, dies)
    if parts and (len(parts) >= _LEAST_FORWARDS or _evaluates(recording, parts, dies, ~dies)):
        return _without(recording, parts)
    # The names of an evaluation may keep its last graphs through the steps after it.
    parts = _graphs_at_peak(recording, (found.free_event >= 0) & ~is_used)
    return _without(recording, parts) if parts and _evaluates(recording, parts, ~is_used, is_used) else []


def _evaluates(recording: Recording, parts: list[Array], dies: Array, is_used: Array) -> bool:
    """Return whether the call of the *parts* is one that never trains, of a model that other calls train."""
    # A batch that a training skips is of a call that trains. An untrained module keeps no graph.
    found, forward = lifetimes(recording), _forward_of(recording, lifetimes(recording))[0]
    kind = _calls(recording, found, parts[0])
    mine = (forward >= 0) & np.isin(found.stack_id, list(kind[0]))
    trained = set(modules_at(recording.marks, found.alloc_event[(forward >= 0) & is_used]))
    # A loss may keep another tensor than the result, as cross entropy does its own logarithms.
    inside = kind[1].difference(modules_at(recording.marks, found.alloc_event[parts[-1][-1:]]))
    is_never_used = len(np.unique(forward[mine])) >= _LEAST_CALLS and bool(dies[mine].all())
    return is_never_used and set() < inside <= trained


def _freed_by_backward(recording: Recording, found: Allocations) -> Array:
    """Return which allocations a backward frees; all where one keeps a graph, which is freed at any time."""
    lives = lives_of(recording, found)
    is_backward = np.append(np.isin(lives.phases.phase, (Phase.BACKWARD, Phase.RECOMPUTE)), False)
    return is_backward[lives.freed_in] | (_backwards(recording).value % BackwardKeeps.RETURNS).any()


def _backwards(recording: Recording) -> Marks:
    """Return the marks at which backwards begin."""
    return recording.marks.of_phase(MarkKind.PHASE_BEGIN, Phase.BACKWARD)


def _without(recording: Recording, parts: list[Array]) -> list[Finding]:
    found, rows = lifetimes(recording), np.concatenate(parts)
    frame = heaviest_line(recording.stacks, found.stack_id[rows], found.block_size[rows])
    n_bytes, evidence = int(found.block_size[rows].sum()), {"forwards": len(parts)}
    of = f"forwards of the same call ({len(parts)} at a time) keep" if len(parts) > 1 else "a forward keeps"
    return [worded(FindingKind.GRAPHS_WITHOUT_BACKWARD, n_bytes, frame, evidence, of=of)]


def _graphs_at_peak(recording: Recording, counts: Array) -> list[Array]:
    """Return the rows among *counts* of each of the equal forwards whose graphs have most of the peak."""
    level, found = timeline(recording).allocated_bytes, lifetimes(recording)
    at = int(level.argmax())
    forward, end = _forward_of(recording, found)
    rows = np.flatnonzero(found.allocated_at(at) & (forward >= 0) & (end <= at) & counts)
    rows = rows[np.argsort(forward[rows], kind="stable")]
    of: dict[tuple[frozenset[Any], ...], list[Array]] = {}
    for part in np.split(rows, np.flatnonzero(np.diff(forward[rows])) + 1):
        of.setdefault(_calls(recording, found, part), []).append(part)
    n_bytes = {kind: int(found.block_size[np.concatenate(parts)].sum()) for kind, parts in of.items()}
    kind = max(of, key=n_bytes.__getitem__)
    is_much = n_bytes[kind] >= max(_LEAST_BYTES, _LEAST_OF_PEAK * level[at])
    return of[kind] if is_much and max(map(len, kind)) > 1 else []


def _waiting_at_peak(recording: Recording) -> list[Finding]:
    """Return a finding if graphs of equal forwards are there at the peak, in however few steps.

    One backward frees most of them, or none frees any: then they were made in a row, and let go unused.
    """
    found, backwards = lifetimes(recording), _backwards(recording)
    parts, lives = _graphs_at_peak(recording, np.ones(len(found), "?")), lives_of(recording, found)
    if len(parts) < _LEAST_FORWARDS or (backwards.value % BackwardKeeps.RETURNS).any():
        return []
    rows, is_backward = np.concatenate(parts), np.append(lives.phases.phase == Phase.BACKWARD, False)
    of = np.where(is_backward[lives.freed_in[rows]], lives.freed_in[rows], -1)
    n_freed = np.bincount(of + 1, found.block_size[rows])
    if 2 * n_freed[1:].max(initial=0) > n_freed.sum():
        return _until_one_backward(recording, parts, 1, 1)
    turn = np.searchsorted(np.sort(backwards.event), [found.alloc_event[part[0]] for part in parts])
    is_in_a_row = np.count_nonzero(turn == turn[-1]) >= _LEAST_FORWARDS
    is_used = n_freed[1:].any() or (found.free_event[rows] < 0).any()
    return _without(recording, parts) if is_in_a_row and not is_used else []


def _forward_of(recording: Recording, found: Allocations) -> tuple[Array, Array]:
    """Return which outermost forward made each allocation, or -1, and the event at which that forward ends.

    Forwards of several threads that overlap make none.
    """
    phases, begun = recording.phases, recording.marks.of_phase(MarkKind.PHASE_BEGIN, Phase.FORWARD)
    # One with gradients, in training or in an evaluation.
    has_graph = np.isin(phases.phase, (Phase.FORWARD, Phase.EVAL)) & np.isin(phases.start_ns, begun.time_ns)
    rows = np.flatnonzero((phases.depth == 0) & has_graph)
    rows = rows[np.argsort(phases.start_event[rows], kind="stable")]
    starts, ends = phases.start_event[rows], phases.end_event[rows]
    forward = np.searchsorted(starts, found.alloc_event, side="right") - 1
    end = np.append(ends, 0)[forward]
    is_inside = (found.alloc_event < end) & ~(starts[1:] < ends[:-1]).any()
    return np.where(is_inside, forward, -1), end


def without_backward(recording: Recording, found: Allocations, is_input: Array) -> Array:
    """Return which allocations are of forwards of which nothing waits for a backward, their inputs too."""
    forward, dies = _forward_of(recording, found)[0], _dies_unused(recording, found)
    unused = (forward >= 0) & ~np.isin(forward, forward[~dies])
    following = np.append(np.sort(found.alloc_event[unused]), np.iinfo("i8").max)
    into = following[np.searchsorted(following, found.alloc_event)]
    return unused | is_input & dies & (into <= found.free_event)


def trains(recording: Recording) -> bool | None:
    """Return whether backwards come after the forwards; None where the recording ends before one could come.

    Forwards without gradients have none, nor have several with gradients in a whole recording without any.
    """
    phases, is_whole = recording.phases, recording.outcome is Outcome.FINISHED
    n_forwards = np.count_nonzero((phases.phase == Phase.FORWARD) & (phases.depth == 0))
    if Phase.BACKWARD in phases.phase or (n_forwards == 0 and Phase.EVAL not in phases.phase):
        return True
    return bool(0 < n_forwards < _LEAST_FORWARDS) if n_forwards == 0 or is_whole else None


def _dies_unused(recording: Recording, found: Allocations) -> Array:
    """Return which allocations are freed before a backward begins; what is there at the end is not."""
    phases = recording.phases
    starts = np.sort(phases.start_event[phases.phase == Phase.BACKWARD])
    after = np.append(starts, len(recording.trace))[np.searchsorted(starts, found.alloc_event)]
    return (found.free_event >= 0) & (found.free_event <= after)


def _made_in(found: Allocations, starts: Array, ends: Array, live: Array) -> list[Array]:
    """Return the rows among *live* that were allocated from each start to its end."""
    spans = zip(starts, ends, strict=True)
    return [np.flatnonzero(live & (found.alloc_event >= a) & (found.alloc_event < b)) for a, b in spans]


def _calls(recording: Recording, found: Allocations, rows: Array) -> tuple[frozenset[Any], ...]:
    """Return the stacks and the modules that made the allocations of one forward."""
    modules = modules_at(recording.marks, found.alloc_event[rows])
    return frozenset(found.stack_id[rows].tolist()), frozenset(modules)


def _forwards(recording: Recording) -> list[tuple[list[int], int]]:
    """Return of each step the most forwards before a backward of their thread, and that backward's row.

    Backwards that create a graph, as in the inner loop of meta-learning, leave the forwards waiting.
    """
    phases, backwards = recording.phases, _backwards(recording)
    creates = backwards.value % BackwardKeeps.RETURNS == BackwardKeeps.A_NEW_GRAPH
    counts = np.isin(phases.phase, (Phase.FORWARD, Phase.BACKWARD))
    counts &= (phases.phase == Phase.FORWARD) | ~np.isin(phases.start_ns, backwards.time_ns[creates])
    outermost = np.flatnonzero((phases.depth == 0) & counts)
    found: dict[int, tuple[list[int], int]] = {}
    waiting: dict[int, list[int]] = {}
    for row in outermost[np.argsort(phases.start_event[outermost], kind="stable")].tolist():
        step, thread = int(phases.step[row]), int(phases.thread[row])
        rows = waiting.get(thread, [])
        if phases.phase[row] == Phase.FORWARD:
            waiting[thread] = [*(each for each in rows if phases.step[each] == step), row]
        elif rows:
            if step >= 0 and (step not in found or len(rows) > len(found[step][0])):
                found[step] = rows, row
            waiting[thread] = []
    return list(found.values())


ANALYSIS = asking("How many graphs does a step keep until its backward?", accumulation, list)
