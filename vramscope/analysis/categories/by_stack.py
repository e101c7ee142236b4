"""Derives a category from stacks: of one frame, or of a file without marks of forward and backward.

By one frame, with size and life, blocks are known that are no tensor of the program. A snapshot that a
program saved itself has no phases except its optimizers. Its stacks still show which events belong to a
module's call, to autograd and to an optimizer. A category is given only where both birth and death are
located; a block stays unknown if no stack locates its death.
"""

import re
from enum import IntEnum

import numpy as np

from vramscope.analysis.folding import files_ending, functions_named, with_callees
from vramscope.analysis.lifetimes import ALIVE, Allocations
from vramscope.model.marks import Category, Phase, Phases
from vramscope.model.recording import Recording
from vramscope.model.stacks import Stacks
from vramscope.model.table import Array, stretches
from vramscope.model.trace import Action
from vramscope.package_data import rows, words

# Code in which torch itself allocates what devices send each other: buckets, replicas, FSDP's buffers.
# Not all of torch/distributed: DTensor computes in there.
_COLLECTIVE = re.compile(
    r"torch/(?:distributed/(?:distributed_c10d|_functional_collectives|utils|algorithms/"
    r"|fsdp/(?:_flat_param|_unshard_param_utils|_runtime_utils)"
    r"|(?:fsdp/_fully_shard|_composable/fsdp)/_fsdp_(?:collectives|param))"
    r"|nn/parallel/(?:distributed|comm|_functions|replicate)|cuda/nccl)"
)
_MEANT = tuple(
    (re.compile(file), tuple(functions.split()), Category[category.upper()])
    for file, functions, category in rows(__file__, "by_stack_frame.tsv", "means")
)
"""Functions of torch that allocate one thing alone, by file, and the category of that."""

# Modules of torch that allocate parameters and no buffers where they are constructed.
_CONSTRUCTED = re.compile(r"torch/nn/modules/(?:linear|conv|sparse|normalization|rnn|activation)\.py$")

# A C++ frame acts for its caller, and so does torch's code that calls operators or gives a storage its bytes.
_IN_PYTHON = re.compile(r"(?<!torch/storage)(?<!torch/_ops)\.py$")
_FOR_ITS_CALLER, _COMPREHENSIONS = (
    tuple(words(__file__, "by_stack_frame.tsv", "functions")[name].split())
    for name in ("for_its_caller", "comprehensions")
)
_OF_STORAGES = re.compile(r"torch/distributed/(?:utils|pipelining/_utils|.*/_fsdp_(?:param|common))\.py$")

# aten/src/ATen/cuda/CublasHandlePool.cpp: 4096 KiB twice and 16 KiB eight times; 32 MiB from Hopper on.
WORKSPACES = (8_519_680, 33_554_432)
# One for cuBLAS and one for cuBLASLt, per thread and stream.
_MOST_PER_THREAD = 2
# Those of the program's thread and of autograd's, per stream.
MOST_WORKSPACES = 2 * _MOST_PER_THREAD
_ON_AUTOGRADS_THREAD = (Phase.BACKWARD, Phase.RECOMPUTE)
_IN_CPP = re.compile(r"getNewWorkspace|WorkspaceSize|Workspace\(\)")
_MULTIPLYING = (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.RECOMPUTE, Phase.EVAL)


def by_collective(stacks: Stacks, found: Allocations) -> Array:
    """The category of what torch's own code for several devices requested; UNKNOWN for everything else."""
    is_ours = _files(stacks, _COLLECTIVE)
    meant = np.where(is_ours, Category.COMMUNICATION, Category.UNKNOWN).astype("u1")
    for file, functions, category in _MEANT:
        is_named = functions_named(stacks, functions)
        if is_named.any():
            meant[is_named & _files(stacks, file)] = category
    return _asked_by(stacks, found, meant)


def is_constructed(stacks: Stacks, found: Allocations) -> Array:
    """Whether a module of torch requested a parameter when it was constructed.

    No call of the module has shown its parameters yet, and none will where FSDP shards them before.
    """
    return _asked_by(stacks, found, _files(stacks, _CONSTRUCTED) & functions_named(stacks, ("__init__",)))


def _files(stacks: Stacks, pattern: re.Pattern[str]) -> Array:
    """Whether the file of each frame matches *pattern*."""
    fits = [pattern.search(text.replace("\\", "/")) is not None for text in stacks.strings]
    return np.array(fits)[stacks.file]


def _asked_by(stacks: Stacks, found: Allocations, meant: Array) -> Array:
    """The value in *meant* of the innermost frame that does not act for its caller, by allocation."""
    if not meant.any():
        return np.zeros(len(found), dtype=meant.dtype)
    meant = meant.copy()
    helps = functions_named(stacks, _COMPREHENSIONS)
    helps |= functions_named(stacks, _FOR_ITS_CALLER) & _files(stacks, _OF_STORAGES)
    inherits = helps | ~_files(stacks, _IN_PYTHON)
    for row in np.flatnonzero(inherits).tolist():  # parents, the callers, come first
        of_caller = meant[stacks.parent[row]]
        meant[row] = of_caller if of_caller or not helps[row] else meant[row]
    return meant[found.stack_id]


def is_workspace(recording: Recording, found: Allocations, phase: Array, is_named: Array) -> Array:
    """Whether a block has the size and the life of cuBLAS's workspace.

    Until torch 2.15, a thread requests one at its first matrix product and keeps it, until the end or until
    the program clears it at the end. It has exactly one of these sizes, belongs to no named tensor, and there
    are few per thread and stream: outputs that the program keeps do not hide the one of autograd's thread.
    C++ frames, where recorded, prove it.
    """
    of_product = _is_of_one_product(recording, found) & ~is_named
    if recording.source != "cuda":  # files have no names, so any of their blocks might be a workspace
        return of_product | _names_workspace(recording.stacks, found)
    fits = np.isin(found.size, WORKSPACES) & ~is_named
    fits &= (found.free_event == ALIVE) | _is_freed_at_last(recording, found)
    # The first product may lie outside of every phase: its workspace comes right after its result.
    is_first = fits & (found.alloc_event >= 0) & (found.stack_id > 0)
    is_first[1:] &= found.stack_id[1:] == found.stack_id[:-1]
    fits &= np.isin(phase, _MULTIPLYING) | (found.alloc_event < 0)
    is_old, is_autograds = found.alloc_event < 0, np.isin(phase, _ON_AUTOGRADS_THREAD)
    for stream in np.unique(found.stream[fits]).tolist():
        for mine, most in (
            (is_old, MOST_WORKSPACES),
            (~is_old & is_autograds, _MOST_PER_THREAD),
            (~is_old & ~is_autograds, _MOST_PER_THREAD),
        ):
            here = fits & mine & (found.stream == stream)
            if np.count_nonzero(here) > most:
                fits &= ~here
        here = found.stream == stream
        if (fits & here & is_autograds).any() and not (fits & here & ~is_autograds).any():
            fits[np.flatnonzero(is_first & here)[:1]] = True
    return fits | of_product | _names_workspace(recording.stacks, found)


def _is_of_one_product(recording: Recording, found: Allocations) -> Array:
    """Whether a block is the workspace of a single product, as torch requests them from 2.15 on.

    torch requests it last and frees it first, so the next event frees it: no tensor lives that briefly.
    """
    version = re.match(r"(\d+)\.(\d+)", recording.process.torch)
    if version is None or (int(version[1]), int(version[2])) < (2, 15):
        return np.zeros(len(found), dtype="?")
    is_brief = (found.alloc_event >= 0) & (found.free_event == found.alloc_event + 1)
    fits: Array = np.isin(found.size, WORKSPACES) & is_brief
    return fits


def _is_freed_at_last(recording: Recording, found: Allocations) -> Array:
    """Whether a block was freed after the last matrix product, and served at least two phases.

    A block that one phase allocates and nothing needs afterwards is an output, however large.
    """
    phases = recording.phases.rows(np.isin(recording.phases.phase, _MULTIPLYING))
    end = phases.end_event.max(initial=0)
    starts = np.sort(phases.start_event)
    is_later = np.searchsorted(starts, found.alloc_event, side="right") < len(starts)
    return (found.free_event >= end) & is_later


def _names_workspace(stacks: Stacks, found: Allocations) -> Array:
    """Whether a C++ function on the stack requests a workspace."""
    names = np.array([_IN_CPP.search(text) is not None for text in stacks.strings], bool)
    return with_callees(stacks, names[stacks.function])[found.stack_id]


_STRETCH = 1 << 14
"""Allocations per pass: intermediate arrays stay in the processor's cache."""
_PLACED = (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE, Phase.EVAL)


class StackKind(IntEnum):
    """The part of a step that a stack belongs to."""

    ELSEWHERE = 0
    FORWARD = 1
    """In a module's call."""
    BACKWARD = 2
    RECOMPUTE = 3
    """In a module's call within backward."""
    OPTIMIZER = 4
    NONE = 5
    """No stack was recorded."""


_IN_BACKWARD = (StackKind.BACKWARD, StackKind.RECOMPUTE)


def is_bare(recording: Recording) -> bool:
    """Whether the recording is a file without marks of forward and backward.

    Our own recordings mark them, and keep only the innermost frames, so the outermost frame means nothing
    there.
    """
    return recording.source == "snapshot" and not np.isin(recording.phases.phase, _PLACED).any()


def by_stack(recording: Recording, found: Allocations) -> Array:
    """Category of every allocation; UNKNOWN where the stacks do not determine it."""
    kind_of = _kinds(recording.stacks)
    if not np.isin(kind_of, (StackKind.FORWARD, StackKind.BACKWARD, StackKind.OPTIMIZER)).any():
        return np.zeros(len(found), dtype="u1")
    placed = _PlacedEvents(recording, found, kind_of)
    born_in = kind_of[found.stack_id]
    if placed.no_stack_is_backward:
        born_in = np.where((found.stack_id == 0) & (found.alloc_event >= 0), StackKind.BACKWARD, born_in)
    may_be_workspace = _may_be_workspace(placed, found, born_in)
    categories = np.empty(len(found), "u1")
    for part in stretches(len(found), _STRETCH):
        rules = _rules(placed, found.rows(part), born_in[part], may_be_workspace[part])
        categories[part] = np.select(
            [mask for mask, _ in rules], [value for _, value in rules], Category.UNKNOWN
        )
    return categories


def is_closure(recording: Recording, phases: Phases) -> Array:
    """Mask of the optimizer steps that ran the model in a closure: allocations there mean nothing."""
    is_model = np.isin(_kinds(recording.stacks), (StackKind.FORWARD, *_IN_BACKWARD))
    calls = np.flatnonzero(is_model[recording.trace.stack_id] & (recording.trace.action == Action.ALLOC))
    before_start, before_end = (np.searchsorted(calls, at) for at in (phases.start_event, phases.end_event))
    return (before_end > before_start) & (phases.phase == Phase.OPTIMIZER)


class _PlacedEvents:
    """The events that a stack locates, in order, and what comes after each of them.

    An allocation is looked up here once; searches of each kind of events took three times as long.
    """

    def __init__(self, recording: Recording, found: Allocations, kind_of: Array) -> None:
        self.n_events = len(recording.trace)
        # Autograd's own threads have no Python frames: among stacks without C++, an empty stack is theirs.
        is_cpp = any("::" in text for text in recording.stacks.strings)
        self.no_stack_is_backward = not is_cpp and bool(np.isin(kind_of, (StackKind.FORWARD,)).any())
        events, kinds = _events_with_kind(recording, found, kind_of)
        if self.no_stack_is_backward:
            kinds = np.where(kinds == StackKind.NONE, StackKind.BACKWARD, kinds)
        is_placed = kinds != StackKind.NONE
        events, kinds = events[is_placed], kinds[is_placed]
        self.n_placed = len(events)
        self._padded = np.append(events, self.n_events + 1).astype("i4")
        forward = kinds == StackKind.FORWARD
        backward = (kinds == StackKind.BACKWARD) | (kinds == StackKind.RECOMPUTE)
        self.last_of_models = int(events[forward | backward].max(initial=-1))
        self.forward, self.backward = _next(forward), _next(backward)
        """The row of the first such event at or after each row; one past the last where there is none."""
        self.of_others = _next(forward | (kinds == StackKind.OPTIMIZER))
        self.of_models = _next(forward | backward)
        self.end_of_run, self.end_of_backward = _ends_of_runs(kinds), _ends_of_runs(backward)

    def rows(self, born: Array) -> Array:
        """The row of the first placed event that is not before each birth."""
        return np.searchsorted(self._padded[:-1], born.astype("i4"))

    def event_at(self, rows: Array) -> Array:
        """The event of each row; one past the last instant for one past the last row."""
        return self._padded[rows]


def _next(chosen: Array) -> Array:
    # In place, and small: fresh memory costs more than the numbers.
    row = np.arange(len(chosen) + 1, dtype="i4")
    np.copyto(row[:-1], len(chosen), where=~chosen)
    np.minimum.accumulate(row[::-1], out=row[::-1])
    return row


def _ends_of_runs(kinds: Array) -> Array:
    """The last row of the run of equal *kinds* that contains each row; one past the last for one past it."""
    n = len(kinds)
    last = np.append(np.flatnonzero(kinds[1:] != kinds[:-1]), [n - 1, n] if n else [0])
    return np.repeat(last.astype("i4"), np.diff(last, prepend=-1))


def _rules(
    placed: _PlacedEvents, found: Allocations, born_in: Array, may_be_workspace: Array
) -> list[tuple[Array, Category]]:
    """The rules with their category; the first that matches decides."""
    born = found.alloc_event
    dies = np.where(found.free_event == ALIVE, placed.n_events, found.free_event)
    is_new = (born >= 0) & (born_in != StackKind.NONE)
    row = placed.rows(born)
    # A birth whose own stack locates it is a placed event itself.
    later = row + (placed.event_at(row) == born)
    last = placed.end_of_run[row]
    own_end = np.where(is_new, placed.event_at(last), -1)
    end_of_all = np.where(is_new, placed.event_at(placed.end_of_backward[row]), -1)
    within = is_new & (dies <= own_end)
    # A block freed after the last event of its run and before the next may have been freed in either.
    outlives = is_new & (placed.event_at(np.minimum(last + 1, placed.n_placed)) < dies)
    of_backward = placed.backward[later]
    backward = placed.event_at(of_backward)
    is_used = (backward < dies) & (dies <= placed.event_at(placed.end_of_backward[of_backward]))
    forward = is_new & (born_in == StackKind.FORWARD)
    # A loss written by hand; a block from before the forward is a batch.
    loss = is_new & (born_in == StackKind.ELSEWHERE) & (placed.event_at(placed.forward[later]) > backward)
    in_backward, again = is_new & (born_in == StackKind.BACKWARD), is_new & (born_in == StackKind.RECOMPUTE)
    is_left = (placed.event_at(placed.of_others[later]) < dies) & (dies > end_of_all)
    optimizer = born_in == StackKind.OPTIMIZER
    is_kept = placed.event_at(placed.of_models[later]) < dies
    is_before_backward = backward <= placed.n_events
    return [
        ((forward | loss) & is_used, Category.ACTIVATION),
        (again & outlives & (dies <= end_of_all), Category.ACTIVATION),
        (in_backward & is_left & ~may_be_workspace, Category.GRADIENT),
        (optimizer & is_kept, Category.OPTIMIZER_STATE),
        (within & (again | (is_new & optimizer)), Category.TEMPORARY),
        (in_backward & (dies <= end_of_all), Category.TEMPORARY),
        (forward & within & is_before_backward, Category.TEMPORARY),
    ]


def _may_be_workspace(placed: _PlacedEvents, found: Allocations, born_in: Array) -> Array:
    """Whether a block of backward may be the cuBLAS workspace of autograd's own thread.

    That thread has a handle of its own, so torch requests a workspace at its first matrix product, without a
    stack, and keeps it as long as a gradient that is never replaced. In a file without names only the size
    and the order of births tell them apart.
    """
    is_kept = (found.free_event == ALIVE) | (found.free_event > placed.last_of_models)
    in_backward = (born_in == StackKind.BACKWARD) & (found.alloc_event >= 0)
    fits: Array = in_backward & is_kept & np.isin(found.size, WORKSPACES)
    for stream in np.unique(found.stream[fits]).tolist():
        here = np.flatnonzero(fits & (found.stream == stream))
        fits[here[np.argsort(found.alloc_event[here])][MOST_WORKSPACES:]] = False
    return fits


def _events_with_kind(recording: Recording, found: Allocations, kind_of: Array) -> tuple[Array, Array]:
    """Events with the ``StackKind`` of their stacks: allocations, and frees with stacks of their own.

    Without stacks for frees, torch repeats that of the allocation (DeviceCachingAllocator::free).
    """
    stack_id = recording.trace.stack_id
    freed = found.free_event >= 0
    of_free = stack_id[found.free_event[freed]]
    has_own = bool(((of_free != found.stack_id[freed]) & (of_free != 0)).any())
    is_placed = recording.trace.action == Action.ALLOC
    if has_own:
        is_placed |= recording.trace.action == Action.FREE_REQUESTED
    events = np.flatnonzero(is_placed)
    return events, kind_of[stack_id[events]]


def _kinds(stacks: Stacks) -> Array:
    """The ``StackKind`` of each stack, decided by its innermost frame that has one. A loop over frames."""
    own = _frame_kinds(stacks).tolist()
    found = [int(StackKind.NONE)]
    for row, parent in enumerate(stacks.parent.tolist()[1:], 1):
        found.append(_inherited(own[row], found[parent] if parent else int(StackKind.ELSEWHERE)))
    return np.array(found, dtype="i1")


_IS_TORCH, _IS_STRANGER = -1, -2


def _inherited(own: int, around: int) -> int:
    if own == StackKind.FORWARD:
        return int(StackKind.RECOMPUTE if around in _IN_BACKWARD else StackKind.FORWARD)
    if own >= 0:
        return own
    # An optimizer's closure: what the program computes there does not belong to the optimizer.
    if own == _IS_STRANGER and around == StackKind.OPTIMIZER:
        return int(StackKind.ELSEWHERE)
    return around


# Frames that only run in backward: a checkpoint's second forward, and what autograd's own thread calls first.
_AGAIN = ("unpack_hook", "recompute_fn", "backward")
_CALLED_BY_AUTOGRAD = re.compile(r"torch/(?:autograd|utils/checkpoint|_functorch|_dynamo|distributed/fsdp)\b")


def _frame_kinds(stacks: Stacks) -> Array:
    """The kind of each frame by itself: a ``StackKind``, torch's own code, or other code."""
    files = [text.replace("\\", "/") for text in stacks.strings]
    engine = np.array(["autograd::Engine::" in text or text == "_engine_run_backward" for text in files])
    calls = functions_named(stacks, ("_call_impl", "_wrapped_call_impl"))
    calls &= files_ending(stacks, "torch/nn/modules/module.py")
    starts = functions_named(stacks, ("backward", "grad"))
    starts &= files_ending(stacks, "torch/autograd/__init__.py")
    optim = np.array(["/torch/optim/" in text and text.endswith(".py") for text in files])
    stranger = np.array([text.endswith(".py") and "/torch/" not in text for text in files])
    again = functions_named(stacks, _AGAIN) & files_ending(stacks, "torch/utils/checkpoint.py")
    first = np.array([_CALLED_BY_AUTOGRAD.search(text) is not None for text in files])
    file = stacks.file
    return np.select(
        [
            engine[stacks.function] | starts | again,
            calls,
            optim[file],
            stranger[file],
            (stacks.parent == 0) & first[file],
        ],
        [StackKind.BACKWARD, StackKind.FORWARD, StackKind.OPTIMIZER, _IS_STRANGER, StackKind.BACKWARD],
        _IS_TORCH,
    )
