"""Sampled totals: what counters said at moments, without events."""

from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from vramscope.model.table import Table


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
