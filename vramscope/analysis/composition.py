"""Groups what was allocated at one instant by any property of the blocks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis import Analysis
from vramscope.analysis.by_module import owners_of
from vramscope.analysis.categories import assign
from vramscope.analysis.lifetimes import Allocations, lifetimes
from vramscope.analysis.lines import code_lines
from vramscope.analysis.private_pools import pool_names
from vramscope.analysis.step_and_phase import phases_of, steps_of
from vramscope.analysis.timeline import instant_of
from vramscope.errors import UsageError
from vramscope.model.marks import Category, Phase
from vramscope.model.recording import Recording
from vramscope.model.table import Int64, Table
from vramscope.units import format_bytes

BEFORE = "before the recording"
NONE = "none"

_Groups = tuple[NDArray[Any], tuple[str, ...]]
"""The group of each allocation as an index into the names."""


@dataclass(frozen=True, slots=True)
class Shares(Table):
    """One row per group, largest first; the bytes sum up to the allocated bytes."""

    group: Int64
    """Index into ``names``."""
    bytes: Int64
    """Bytes of the blocks, which count as allocated."""
    count: Int64
    """The number of blocks."""
    requested_bytes: Int64
    """Bytes that the program requested."""
    names: tuple[str, ...] = ()
    by: str = ""
    instant: int = 0

    @property
    def totals(self) -> dict[str, int]:
        """Bytes by name, largest first."""
        return {
            self.names[group]: size
            for group, size in zip(self.group.tolist(), self.bytes.tolist(), strict=True)
        }


def composition(recording: Recording, by: str = "phase", instant: int | None = None) -> Shares:
    """Allocated bytes by one property of the blocks, at one instant.

    Parameters
    ----------
    by
        The property, one of ``BY``.
    instant
        Number of events before the moment; None means the peak of allocated bytes.

    Raises
    ------
    UsageError
        For an unknown property, or an instant outside of the recording.
    """
    at, found = instant_of(recording, instant), lifetimes(recording)
    rows = found.largest_at(at)
    group, names = grouped(recording, by, found, rows)
    n_bytes, count, requested = (np.zeros(len(names), "i8") for _ in range(3))
    np.add.at(n_bytes, group, found.block_size[rows])
    np.add.at(count, group, 1)
    np.add.at(requested, group, found.size[rows])
    order = np.argsort(-n_bytes, kind="stable")
    order = order[count[order] > 0]
    return Shares(order, n_bytes[order], count[order], requested[order], names=names, by=by, instant=at)


def grouped(recording: Recording, by: str, found: Allocations, rows: NDArray[Any]) -> _Groups:
    """Assign the given rows of *found* to groups by the property *by*."""
    if by not in BY:
        raise UsageError(f"composition by {by!r}: known are {', '.join(BY)}")
    return BY[by](recording, found, rows)


# -------------------------------------------------------------------------------------- by what


def _phase(recording: Recording, found: Allocations, rows: NDArray[Any]) -> _Groups:
    """Groups by the innermost phase of the allocation."""
    names = (*(phase.name.lower() for phase in Phase), NONE, BEFORE)
    born = found.alloc_event[rows]
    row = np.append(phases_of(recording.phases, len(recording.trace)), -1)[born]
    place = {phase: i for i, phase in enumerate(Phase)}
    of = [place[Phase(value)] for value in recording.phases.phase.tolist()]
    index = np.array([*of, len(Phase)])[row]  # the last entry is for −1: outside of every phase
    index[born < 0] = len(Phase) + 1
    return index, names


def _step(recording: Recording, found: Allocations, rows: NDArray[Any]) -> _Groups:
    """Groups by the step of the allocation."""
    born = found.alloc_event[rows]
    step = steps_of(recording.steps, born)
    names = (BEFORE, NONE, *(f"step {index}" for index in recording.steps.index.tolist()))
    return np.where(born < 0, 0, step + 2), names


def _category(recording: Recording, found: Allocations, rows: NDArray[Any]) -> _Groups:
    category = assign(recording, found).category[rows].astype("i8")
    return category, tuple(Category(i).name.lower() for i in range(len(Category)))


def _module(recording: Recording, found: Allocations, rows: NDArray[Any]) -> _Groups:
    owners = owners_of(recording, found, assign(recording, found))
    return owners.module[rows].astype("i8"), tuple(path or NONE for path in owners.paths)


def _stack(recording: Recording, found: Allocations, rows: NDArray[Any]) -> _Groups:
    """Groups by stack, named by the innermost frame."""
    stacks, group = np.unique(found.stack_id[rows], return_inverse=True)
    return group.reshape(-1), tuple(_frame(recording, stack) for stack in stacks.tolist())


def _line(recording: Recording, found: Allocations, rows: NDArray[Any]) -> _Groups:
    """Groups by the program's own line and the library function that it calls."""
    known = code_lines(recording.stacks)
    return known.of_stack[found.stack_id[rows]], known.names


def _frame(recording: Recording, stack_id: int) -> str:
    if not stack_id:
        return NONE
    frame = recording.stacks.frame(stack_id)
    return f"{frame.file}:{frame.line} {frame.function} (stack {stack_id})"


def _size_class(_: Recording, found: Allocations, rows: NDArray[Any]) -> _Groups:
    """Groups by block size, up to each power of two."""
    # For a power of two frexp gives the exponent of the next one, hence one byte less.
    exponent = np.frexp((found.block_size[rows] - 1).astype("f8"))[1].astype("i8")
    exponent = np.maximum(exponent, 0)
    top = int(exponent.max(initial=0))
    return exponent, tuple(f"up to {format_bytes(1 << power)}" for power in range(top + 1))


def _pool(recording: Recording, found: Allocations, rows: NDArray[Any]) -> _Groups:
    names = tuple("default" if pool.id == (0, 0) else f"private {pool}" for pool in pool_names(recording))
    pool = found.pool[rows].astype("i8")
    is_known = (pool >= 0) & (pool < len(names))
    return np.where(is_known, pool, len(names)), (*names, "unknown pool")


def _stream(_: Recording, found: Allocations, rows: NDArray[Any]) -> _Groups:
    """Groups by stream, numbered in order of their meaningless handles; the default stream is 0."""
    streams = np.unique(np.append(found.stream, np.uint64(0)))
    group = np.searchsorted(streams, found.stream[rows])
    return group, tuple(f"stream {number}" for number in range(len(streams)))


BY: dict[str, Callable[[Recording, Allocations, NDArray[Any]], _Groups]] = {
    "phase": _phase,
    "step": _step,
    "category": _category,
    "module": _module,
    "line": _line,
    "stack": _stack,
    "size_class": _size_class,
    "pool": _pool,
    "stream": _stream,
}
"""The properties that ``composition`` can group by."""

ANALYSIS = Analysis("composition", "Who holds what was allocated at one instant?", composition)
