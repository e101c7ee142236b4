"""Samples of memory counters at single moments, without allocator events."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vramscope.model.table import Int64, Table

if TYPE_CHECKING:
    from typing_extensions import Self

UNKNOWN = -1
"""Marks a number that the source did not report."""


@dataclass(frozen=True, slots=True)
class Counters(Table):
    """One row per sample; −1 where a quantity is unknown (a note gives the reason)."""

    time_ns: Int64
    event: Int64
    """The instant of the trace; −1 where unknown (the time then locates the sample)."""
    allocated_bytes: Int64
    """torch's own counter of allocated bytes."""
    reserved_bytes: Int64
    """torch's own counter of reserved bytes."""
    device_used_bytes: Int64
    """NVML: bytes that the driver counts as used on the device, without its own reserve where it can tell."""
    device_total_bytes: Int64
    process_used_bytes: Int64
    """NVML: bytes that this process uses, including its CUDA context and libraries."""
    utilization_percent: Int64
    requested_bytes: Int64
    """torch's own counter; includes requests of blocks that wait for another stream."""
    active_bytes: Int64
    """torch's own counter of active bytes."""
    inactive_split_bytes: Int64
    """torch's own counter of free bytes in split blocks."""
    allocated_peak_bytes: Int64
    """torch's ``max_memory_allocated()`` as the program sees it: since it last reset it, if ever."""
    reserved_peak_bytes: Int64
    device_free_bytes: Int64
    """NVML: free bytes. Used bytes, free bytes and the driver's own reserve add up to the device's total."""
    others_used_bytes: Int64
    """NVML: bytes that other processes hold, according to the driver's list of processes."""
    reserved_drift_bytes: Int64
    """The larger change of torch's reserved and the device's used bytes while the driver was asked; 0: the
    row is of one moment.
    """

    host_resident_bytes: Int64
    """Host memory of this process that is in RAM (resident set size), pinned memory included."""
    host_pinned_bytes: Int64
    """torch's own counter of pinned host memory: what its host allocator holds, cached blocks included."""
    host_pinned_active_bytes: Int64
    """torch's own counter of pinned host memory in use; each block counts with its size, a power of two.
    −1 before torch 2.13, which does not subtract what is handed back.
    """
    nccl_bytes: Int64
    """NCCL's own counter: bytes of the device that the communicators of torch's process groups held at the
    end of the last step.
    """

    allocated_highest_bytes: Int64
    """The most allocated bytes since the last row that has this figure: a step begins or ends at these rows.

    torch's own peak, which ``mode="counters"`` and ``every=`` reset there, unseen by the program.
    """
    reserved_highest_bytes: Int64
    requested_highest_bytes: Int64
    active_highest_bytes: Int64
    retries: Int64
    """torch's own ``num_alloc_retries``: how often the cache was released because a request did not fit,
    since the process began.
    """

    @property
    def has_clock(self) -> bool:
        """Whether the times are real: samples without any are numbered from 0, in their order."""
        return bool(self.time_ns.any()) and not np.array_equal(self.time_ns, np.arange(len(self)))

    @classmethod
    def of(cls, **columns: Any) -> "Self":
        """Build a table from any sequences; unlike in other tables, a missing column becomes unknown."""
        n_rows = next((len(column) for name, column in columns.items() if name in cls.DTYPES), 0)
        unknown = {
            name: np.full(n_rows, UNKNOWN) for name in cls.DTYPES if name not in columns and name != "time_ns"
        }
        # Not super(): a dataclass with slots is a new class, not the one that this method was defined in.
        return cls(
            **{
                name: np.array(columns.get(name, unknown.get(name, np.zeros(n_rows))), dtype=dtype)
                for name, dtype in cls.DTYPES.items()
            }
        )
