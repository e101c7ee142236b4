"""Sampled totals: what counters said at moments, without events."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vramscope.model.table import Table

if TYPE_CHECKING:
    from typing_extensions import Self

UNKNOWN = -1
"""Where a number could not be had."""


@dataclass(frozen=True, slots=True)
class Counters(Table):
    """One row per sample; −1 where a quantity could not be had (a note says why)."""

    DTYPES: ClassVar = {
        "time_ns": "i8",
        "event": "i8",
        "allocated_bytes": "i8",
        "reserved_bytes": "i8",
        "device_used_bytes": "i8",
        "device_total_bytes": "i8",
        "process_used_bytes": "i8",
        "utilization_percent": "i8",
        "requested_bytes": "i8",
        "active_bytes": "i8",
        "inactive_split_bytes": "i8",
        "allocated_peak_bytes": "i8",
        "reserved_peak_bytes": "i8",
        "device_free_bytes": "i8",
        "others_used_bytes": "i8",
        "reserved_drift_bytes": "i8",
    }

    time_ns: NDArray[Any]
    event: NDArray[Any]
    """The instant of the trace, −1 where unknown (find it by time)."""
    allocated_bytes: NDArray[Any]
    """torch's own counter."""
    reserved_bytes: NDArray[Any]
    """torch's own counter."""
    device_used_bytes: NDArray[Any]
    """NVML: what the driver counts on the device, its own reserve excluded where it can."""
    device_total_bytes: NDArray[Any]
    process_used_bytes: NDArray[Any]
    """NVML: of this process, context and libraries included."""
    utilization_percent: NDArray[Any]
    requested_bytes: NDArray[Any]
    """torch's own counter; requests of blocks that wait for another stream count."""
    active_bytes: NDArray[Any]
    """torch's own counter."""
    inactive_split_bytes: NDArray[Any]
    """torch's own counter."""
    allocated_peak_bytes: NDArray[Any]
    """torch's ``max_memory_allocated()``, as the program would see it: since it last reset it, if ever."""
    reserved_peak_bytes: NDArray[Any]
    device_free_bytes: NDArray[Any]
    """NVML: used, free and the driver's own reserve are the device's total."""
    others_used_bytes: NDArray[Any]
    """NVML: what other processes hold by the driver's list of them."""
    reserved_drift_bytes: NDArray[Any]
    """By how much torch's reserved bytes went up or down while the driver was asked; 0: all is of one
    moment."""

    @classmethod
    def of(cls, **columns: Any) -> "Self":
        """As of every table, but a column that is not given is unknown, not zero."""
        n_rows = next((len(column) for name, column in columns.items() if name in cls.DTYPES), 0)
        unknown = {
            name: np.full(n_rows, UNKNOWN) for name in cls.DTYPES if name not in columns and name != "time_ns"
        }
        # Not super(): a dataclass with slots is another class than the one that this function saw.
        return cls(
            **{
                name: np.array(columns.get(name, unknown.get(name, np.zeros(n_rows))), dtype=dtype)
                for name, dtype in cls.DTYPES.items()
            }
        )
