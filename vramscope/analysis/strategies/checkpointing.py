"""Trials of activation checkpointing: a block's saved tensors are freed, and made again in backward.

The calls of a block are found by the modules that ran. What a call saved, except its result, is freed when
the block returns and made again when backward reaches the block. A region of several blocks that is
checkpointed as a whole is one forward more, the recompute: it is tried in regions of one block each.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from vramscope.analysis.by_module import ModuleEvidence, Owners
from vramscope.analysis.categories.by_lifetime import Lives, padded
from vramscope.analysis.lifetimes import Allocations
from vramscope.model.marks import Phase
from vramscope.model.table import Array

_DEEPEST = 3
"""Number of nested levels of block lists that are tried."""


class _Call(NamedTuple):
    """A forward of one block."""

    rows: Array
    """Rows of what the call allocated, in order."""
    end: int
    """Event of the first allocation after the call."""
    phase: int
    """Row of the forward in ``Phases``."""


@dataclass(frozen=True, slots=True, eq=False)
class Checkpointed:
    """One choice of blocks to checkpoint."""

    blocks: tuple[str, ...]
    """Paths of the modules."""
    extra_bytes: Array
    """Additional bytes at each instant: negative where bytes are saved."""
    least_extra_bytes: Array
    """The same if nothing that a block made, except its result, existed in backward."""
    most_extra_bytes: Array
    """The same if all that a block made in its forward existed for as long as its backward lasts."""
    is_divided: bool = False
    """Whether the blocks are of a region that the program checkpoints as a whole."""


def checkpointed(
    found: Allocations, lives: Lives, owners: Owners, levels: tuple[Array, Array]
) -> Iterator[Checkpointed]:
    """Yield one trial for each depth of numbered modules.

    *levels* are the bytes at each instant: all that are allocated, and workspaces of products.
    """
    level, workspace = levels
    without = level - workspace
    made = _first_made(found, owners)
    for depth in range(1, _DEEPEST + 1):
        block_of, names = _blocks(owners, depth)
        if len(names) < 2:
            continue
        divided = _of_whole_regions(_calls(found, lives, owners, block_of, Phase.RECOMPUTE))
        calls = _calls(found, lives, owners, block_of, Phase.FORWARD) + divided
        calls.sort(key=lambda call: int(found.alloc_event[call.rows[0]]))
        change = np.zeros(len(level) + 1)
        peaks = np.zeros(len(level))
        highest = np.zeros(len(level))
        removed, whole = (np.zeros(len(level) + 1) for _ in range(2))
        for call in _without_blocks(lives, calls):
            _remove(found, call, removed)
        starts = _starts(found, lives, calls, made, _frees_of(found, owners, calls), len(level))
        for at, (call, start) in enumerate(zip(calls, starts, strict=True)):
            if start is not None:
                _apply(found, call, start, level, (change, peaks))
                _remove(found, call, removed)
                ends = starts[at - 1] if at and calls[at - 1].phase == call.phase else None
                _hold(found, call, (start, ends), without, whole)
                _multiply(found, call, start, workspace, highest)
            following = starts[at + 1] if at + 1 < len(calls) else None
            if following is not None and calls[at + 1].phase == call.phase:
                _keep_result(found, call, following, change)
        _keep_results_of(found, lives, divided, change)
        extra = np.cumsum(change)[:-1]
        most = extra + np.cumsum(whole)[:-1] + highest
        saving = [call for call, start in zip(calls, starts, strict=True) if start is not None]
        if any(_gives_away(found, lives, call) for call in saving):
            most = np.maximum(most, 0)
        if not saving:
            continue
        which = dict.fromkeys(names[block_of[owners.module[call.rows[0]]]] for call in saving)
        yield Checkpointed(tuple(which), extra + peaks, np.cumsum(removed)[:-1], most, bool(divided))


def _blocks(owners: Owners, depth: int) -> tuple[Array, tuple[str, ...]]:
    """Return the block of each module path (−1 for none), and the names of the blocks.

    A block is the beginning of a path up to its *depth*-th number, or up to the first module below that whose
    forward ran: a ``ModuleList`` has none. A single layer, with no module within it, is no block.
    """
    names: dict[str, int] = {}
    found = [_up_to_number(path, depth, owners.called) for path in owners.paths]
    blocks = {name for name, path in zip(found, owners.paths, strict=True) if name and name != path}
    index = [names.setdefault(name, len(names)) if name in blocks else -1 for name in found]
    return np.array(index), tuple(names)


def _up_to_number(path: str, depth: int, called: frozenset[str]) -> str:
    words, seen, name = path.split("."), 0, ""
    for word in words:
        seen, name = seen + word.isdigit(), f"{name}.{word}".lstrip(".")
        if seen >= depth and (name in called or not called):
            return name
    return ""


def _calls(found: Allocations, lives: Lives, owners: Owners, block_of: Array, of: Phase) -> list[_Call]:
    """Return the calls: consecutive allocations in one block and one forward, or recompute."""
    rows = np.flatnonzero(lives.phase == of)
    rows = rows[np.argsort(found.alloc_event[rows], kind="stable")]
    block = np.where(owners.known[rows] == ModuleEvidence.CALL, block_of[owners.module[rows]], -1)
    inside = np.flatnonzero(block >= 0)
    if not len(inside):
        return []
    key = np.stack([block[inside], lives.born_in[rows][inside]])
    cuts = np.flatnonzero((np.diff(key) != 0).any(axis=0)) + 1
    calls = []
    for run in np.split(inside, cuts):
        phase = int(lives.born_in[rows[run[0]]])
        after = int(run[-1]) + 1
        end = int(lives.phases.end_event[phase])
        if after < len(rows):
            end = min(end, int(found.alloc_event[rows[after]]))
        calls.append(_Call(rows[run], end, phase))
    return calls


def whole_regions(found: Allocations, lives: Lives, owners: Owners) -> dict[int, tuple[str, ...]]:
    """Return the blocks of each recompute that runs several, by the recompute's row in ``Phases``."""
    regions: dict[int, tuple[str, ...]] = {}
    for depth in range(_DEEPEST, 0, -1) if (lives.phase == Phase.RECOMPUTE).any() else ():
        block_of, names = _blocks(owners, depth)
        blocks: dict[int, list[str]] = {}
        for call in _of_whole_regions(_calls(found, lives, owners, block_of, Phase.RECOMPUTE)):
            blocks.setdefault(call.phase, []).append(names[block_of[owners.module[call.rows[0]]]])
        regions |= {phase: tuple(dict.fromkeys(each)) for phase, each in blocks.items() if len(set(each)) > 1}
    return regions


def _of_whole_regions(calls: list[_Call]) -> list[_Call]:
    """Return the calls of recomputes that run several blocks: a region of one block is as it should be."""
    n_calls = Counter(call.phase for call in calls)
    return [call for call in calls if n_calls[call.phase] > 1]


def _without_blocks(lives: Lives, calls: list[_Call]) -> list[_Call]:
    """Return the forwards in which no block is known, each as one call: all of it may have been of blocks.

    So a forward of another model is, and one whose modules were not recorded.
    """
    rows = np.flatnonzero(lives.phase == Phase.FORWARD)
    phases = lives.born_in[rows]
    return [
        _Call(rows[phases == phase], int(lives.phases.end_event[phase]), phase)
        for phase in np.setdiff1d(phases, [call.phase for call in calls]).tolist()
    ]


def _saved(found: Allocations, lives: Lives, call: _Call) -> Array:
    """Return the rows that backward frees, except the result of the call.

    If the recording ends before the backward, everything still allocated counts.
    """
    freed_in = lives.freed_in[call.rows]
    in_backward = (freed_in >= 0) & (padded(lives.phases.phase)[freed_in] == Phase.BACKWARD)
    starts = lives.phases.start_event[lives.phases.phase == Phase.BACKWARD]
    if not bool((starts >= lives.phases.start_event[call.phase]).any()):
        in_backward |= found.free_event[call.rows] < 0
    result = _result(found, call)
    rows: Array = call.rows[in_backward]
    return rows if result is None else rows[rows != result]


def _result(found: Allocations, call: _Call) -> int | None:
    """Return the last large row that is live when the block returns; a norm's statistics may follow it."""
    free = found.free_event[call.rows]
    left = call.rows[(free < 0) | (free >= call.end)]
    if not len(left):
        return None
    size = found.block_size[left[-3:]]
    return int(left[-3:][np.flatnonzero(32 * size >= size.max())[-1]])


def _gives_away(found: Allocations, lives: Lives, call: _Call) -> bool:
    """Return whether what the call made within is kept outside of it, as attention maps that are returned.

    A checkpoint frees none of that. What backward needs as well is not told apart from what it alone keeps,
    so it is seen by the rest: blocks beside the result that are freed after the call, within the forward.
    Where maps are returned these were 0.4 to 0.5 of the saved bytes; a second result is less.
    """
    freed, size = found.free_event[call.rows], found.block_size[call.rows]
    is_kept = (freed > call.end) & (freed < lives.phases.end_event[call.phase])
    is_kept &= (call.rows != _result(found, call)) & (32 * size >= size.max())
    saved_bytes = found.block_size[_saved(found, lives, call)].sum()
    return bool(np.count_nonzero(is_kept) > 1 and 4 * size[is_kept].sum() > saved_bytes)


def _first_made(found: Allocations, owners: Owners) -> Array:
    """Return for each row the event of the first allocation that backward makes for it."""
    first = np.full(len(found), np.iinfo("i8").max)
    is_known = owners.forward >= 0
    np.minimum.at(first, owners.forward[is_known], found.alloc_event[is_known])
    return first


def _frees_of(found: Allocations, owners: Owners, calls: list[_Call]) -> list[Array]:
    """Return for each call the events that free what backward makes for the call's saved tensors."""
    call_of = np.full(len(found), len(calls))
    for at, call in enumerate(calls):
        call_of[call.rows] = at
    rows = np.flatnonzero(owners.forward >= 0)
    mine = call_of[owners.forward[rows]]
    order = np.argsort(mine, kind="stable")
    return np.split(found.free_event[rows[order]], np.searchsorted(mine[order], np.arange(1, len(calls) + 1)))


def _starts(
    found: Allocations, lives: Lives, calls: list[_Call], made: Array, frees: list[Array], never: int
) -> list[int | None]:
    """Return for each call the event at which backward reaches it; None if it saved nothing."""
    starts: list[int | None] = []
    for at, call in enumerate(calls):
        saved = _saved(found, lives, call)
        if not len(saved):
            starts.append(None)
            continue
        freed = found.free_event[saved]
        if (freed < 0).any():
            starts.append(never)  # backward never came
            continue
        first_freed = int(freed.min())
        start = int(min(first_freed, made[saved].min()))
        if at + 1 < len(calls) and calls[at + 1].phase == call.phase:
            # What the next block saved is freed first: a gradient made until then belongs to that block.
            gone = np.append(frees[at + 1], found.free_event[_saved(found, lives, calls[at + 1])])
            start = max(start, int(gone[gone <= first_freed].max(initial=-1)) + 1)
        starts.append(start)
    return starts


def _apply(found: Allocations, call: _Call, start: int, level: Array, into: tuple[Array, Array]) -> None:
    change, peaks = into
    first = int(found.alloc_event[call.rows[0]])
    result = _result(found, call)
    kept = 0 if result is None else int(found.block_size[result])
    freed = found.free_event[call.rows]
    is_open = (freed < 0) & (start == len(level))
    saved = call.rows[(freed >= start) | is_open]
    n_bytes = int(found.block_size[saved[saved != result]].sum())
    if start <= call.end:
        return
    change[call.end + 1] -= n_bytes
    change[start] += n_bytes
    if start == len(level):
        return
    # The second forward has temporaries too, as the first had.
    highest = int(level[first : call.end + 1].max() - level[first])
    peaks[start] = max(highest - n_bytes - kept, 0)


def _hold(
    found: Allocations, call: _Call, interval: tuple[int, int | None], level: Array, held: Array
) -> None:
    """Hold all that the call's forward allocated at once, from the start of its backward to the end.

    The end is where backward reaches the call before, or where the last of what the call saved is freed.
    """
    start, before = interval
    if start <= call.end or start == len(level):
        return
    freed = found.free_event[call.rows]
    saved = (freed >= start) & (call.rows != _result(found, call))
    end = max([int(freed[saved].max(initial=start)) + 1, *([before] if before is not None else [])])
    first = int(found.alloc_event[call.rows[0]])
    highest = int(level[first : call.end + 1].max() - level[first])
    n_bytes = found.block_size[call.rows]
    held[start] += max(highest - int(n_bytes[saved].sum()), 0)
    np.add.at(held, freed[saved] + 1, n_bytes[saved])
    held[end + 1 if end < len(level) else len(level)] -= max(highest, int(n_bytes[saved].sum()))


def _multiply(found: Allocations, call: _Call, start: int, workspace: Array, highest: Array) -> None:
    """Add the workspace of the second forward's products, which lasts as long as each product."""
    if start > call.end and start < len(workspace):
        first = int(found.alloc_event[call.rows[0]])
        of_call = workspace[first : call.end + 1]
        highest[start] = max(highest[start], float(of_call.max() - of_call[0]))


def _remove(found: Allocations, call: _Call, removed: Array) -> None:
    """Remove everything that the call left allocated, except its result, from birth to end.

    In the first forward nothing is saved, so each may be freed as soon as the next operation has taken it.
    """
    result = _result(found, call)
    freed = found.free_event[call.rows]
    left = call.rows[(freed < 0) | (freed > call.end)]
    left = left[left != result]
    np.subtract.at(removed, found.alloc_event[left] + 1, found.block_size[left])
    is_freed = found.free_event[left] >= 0
    np.add.at(removed, found.free_event[left[is_freed]] + 1, found.block_size[left[is_freed]])


def _keep_results_of(found: Allocations, lives: Lives, divided: list[_Call], change: Array) -> None:
    """Keep the results of all blocks but the last, from the forward of their region to its recompute."""
    phases = lives.phases
    forwards = phases.start_event[(phases.phase == Phase.FORWARD) & (phases.depth == 0)]
    for phase in {call.phase for call in divided}:
        start = int(phases.start_event[phase])
        results = [_result(found, call) for call in divided if call.phase == phase][:-1]
        n_bytes = sum(int(found.block_size[each]) for each in results if each is not None)
        change[int(forwards[forwards < start].max(initial=0))] += n_bytes
        change[start] -= n_bytes


def _keep_result(found: Allocations, call: _Call, until: int, change: Array) -> None:
    """Keep the result until the next block starts in backward, even if nothing there saved it."""
    result = _result(found, call)
    if result is not None and 0 <= found.free_event[result] < until:
        change[found.free_event[result] + 1] += found.block_size[result]
        change[until] -= found.block_size[result]
