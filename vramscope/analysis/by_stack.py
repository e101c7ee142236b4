"""Sums what was allocated at one instant by call stack."""

from dataclasses import dataclass

import numpy as np

from vramscope.analysis import asking
from vramscope.analysis.lifetimes import Allocations, lifetimes
from vramscope.analysis.timeline import instant_of
from vramscope.model.recording import Recording
from vramscope.model.table import Int32, Int64, Table, sums_of


@dataclass(frozen=True, slots=True)
class StackBytes(Table):
    """One row per stack, largest first; the bytes sum up to the allocated bytes."""

    stack_id: Int32
    """The allocating stack; 0 where no stack was recorded."""
    bytes: Int64
    """Bytes of the blocks, which count as allocated."""
    count: Int64
    """The number of blocks."""
    requested_bytes: Int64
    """Bytes that the program requested."""
    instant: int = 0

    @property
    def total_bytes(self) -> int:
        """All allocated bytes, in sum."""
        return int(self.bytes.sum())


def by_stack(recording: Recording, instant: int | None = None) -> StackBytes:
    """Allocated bytes by call stack at one instant.

    Parameters
    ----------
    instant
        Number of events before the moment; None means the peak of allocated bytes.
    """
    return stack_bytes(lifetimes(recording), instant_of(recording, instant))


def stack_bytes(allocations: Allocations, instant: int) -> StackBytes:
    """The same result as ``by_stack`` from lifetimes that are known already."""
    live = allocations.rows(allocations.largest_at(instant))
    stack_id, group, count = np.unique(live.stack_id, return_inverse=True, return_counts=True)
    n_bytes, requested = (sums_of(group, column, len(stack_id)) for column in (live.block_size, live.size))
    order = np.argsort(-n_bytes, kind="stable")
    return StackBytes(
        stack_id=stack_id[order],
        bytes=n_bytes[order],
        count=count[order].astype("i8"),
        requested_bytes=requested[order],
        instant=instant,
    )


ANALYSIS = asking("Which call stacks hold what was allocated at one instant?", by_stack)
