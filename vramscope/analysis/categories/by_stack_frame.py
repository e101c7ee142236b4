"""Derives a category from stack, size and life, for blocks that are no tensor of the program."""

import re
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.lifetimes import ALIVE, Allocations
from vramscope.model.marks import Category, Phase
from vramscope.model.recording import Recording
from vramscope.model.stacks import Stacks
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


def by_collective(stacks: Stacks, found: Allocations) -> NDArray[Any]:
    """The category of what torch's own code for several devices requested; UNKNOWN for everything else."""
    is_ours = _files(stacks, _COLLECTIVE)
    meant = np.where(is_ours, Category.COMMUNICATION, Category.UNKNOWN).astype("u1")
    for file, functions, category in _MEANT:
        is_named = _functions(stacks, functions)
        if is_named.any():
            meant[is_named & _files(stacks, file)] = category
    return _asked_by(stacks, found, meant)


def is_constructed(stacks: Stacks, found: Allocations) -> NDArray[Any]:
    """Whether a module of torch requested a parameter when it was constructed.

    No call of the module has shown its parameters yet, and none will where FSDP shards them before.
    """
    return _asked_by(stacks, found, _files(stacks, _CONSTRUCTED) & _functions(stacks, ("__init__",)))


def _files(stacks: Stacks, pattern: re.Pattern[str]) -> NDArray[Any]:
    """Whether the file of each frame matches *pattern*."""
    fits = [pattern.search(text.replace("\\", "/")) is not None for text in stacks.strings]
    return np.array(fits)[stacks.file]


def _functions(stacks: Stacks, names: Collection[str]) -> NDArray[Any]:
    """Whether the function of each frame is one of *names*."""
    return np.array([text in names for text in stacks.strings])[stacks.function]


def _asked_by(stacks: Stacks, found: Allocations, meant: NDArray[Any]) -> NDArray[Any]:
    """The value in *meant* of the innermost frame that does not act for its caller, by allocation."""
    if not meant.any():
        return np.zeros(len(found), dtype=meant.dtype)
    meant = meant.copy()
    helps = _functions(stacks, _COMPREHENSIONS)
    helps |= _functions(stacks, _FOR_ITS_CALLER) & _files(stacks, _OF_STORAGES)
    inherits = helps | ~_files(stacks, _IN_PYTHON)
    for row in np.flatnonzero(inherits).tolist():  # parents, the callers, come first
        of_caller = meant[stacks.parent[row]]
        meant[row] = of_caller if of_caller or not helps[row] else meant[row]
    return meant[found.stack_id]


def is_workspace(
    recording: Recording, found: Allocations, phase: NDArray[Any], is_named: NDArray[Any]
) -> NDArray[Any]:
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
    return fits | of_product | _names_workspace(recording.stacks, found)


def _is_of_one_product(recording: Recording, found: Allocations) -> NDArray[Any]:
    """Whether a block is the workspace of a single product, as torch requests them from 2.15 on.

    torch requests it last and frees it first, so the next event frees it: no tensor lives that briefly.
    """
    version = re.match(r"(\d+)\.(\d+)", recording.process.torch)
    if version is None or (int(version[1]), int(version[2])) < (2, 15):
        return np.zeros(len(found), dtype="?")
    is_brief = (found.alloc_event >= 0) & (found.free_event == found.alloc_event + 1)
    fits: NDArray[Any] = np.isin(found.size, WORKSPACES) & is_brief
    return fits


def _is_freed_at_last(recording: Recording, found: Allocations) -> NDArray[Any]:
    """Whether a block was freed after the last matrix product, and served at least two phases.

    A block that one phase allocates and nothing needs afterwards is an output, however large.
    """
    phases = recording.phases.rows(np.isin(recording.phases.phase, _MULTIPLYING))
    end = phases.end_event.max(initial=0)
    starts = np.sort(phases.start_event)
    is_later = np.searchsorted(starts, found.alloc_event, side="right") < len(starts)
    return (found.free_event >= end) & is_later


def _names_workspace(stacks: Stacks, found: Allocations) -> NDArray[Any]:
    """Whether a C++ function on the stack requests a workspace."""
    names = np.array([_IN_CPP.search(text) is not None for text in stacks.strings])
    if not names.any():
        return np.zeros(len(found), dtype="?")
    is_named = names[stacks.function]
    for row, parent in enumerate(stacks.parent.tolist()):  # parents, the callers, come first
        is_named[row] |= is_named[parent]
    return is_named[found.stack_id]
