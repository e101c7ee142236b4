"""Bytes that this process holds outside of torch's allocator while other processes use the same device.

Each process that uses CUDA has a context of its own, with kernels and libraries, so N processes on one device
pay for N of them. The driver's counters show the bytes of this process and the sum of the others.
"""

from dataclasses import dataclass

import numpy as np

from vramscope.analysis import Analysis
from vramscope.analysis.worded import worded
from vramscope.model.codes import FindingKind
from vramscope.model.finding import Finding
from vramscope.model.recording import Recording

_LEAST_BYTES = 64 << 20
"""Contexts of CUDA take 200 to 600 MiB; a process without one, such as a monitor, takes a few MiB."""


@dataclass(frozen=True, slots=True)
class SharedDevice:
    """The driver's counters at the sample where other processes held the most."""

    outside_bytes: int = 0
    """Bytes of this process outside of torch's allocator; 0 if no other process was seen."""
    others_bytes: int = 0
    """Bytes of all other processes on the device together; how many these are is not recorded."""
    time_ns: int = 0
    """Time of the sample; 0 if there is none."""


def shared_device(recording: Recording) -> SharedDevice:
    """Find what this process holds outside of torch's allocator while other processes share its device.

    Only samples count during which torch's reserved bytes did not change, so that torch's counter and the
    driver's are of one moment.
    """
    samples = recording.counters
    is_known = (samples.process_used_bytes > 0) & (samples.reserved_bytes >= 0)
    rows = np.flatnonzero(is_known & (samples.others_used_bytes > 0) & (samples.reserved_drift_bytes == 0))
    if not len(rows):
        return SharedDevice()
    at = rows[int(samples.others_used_bytes[rows].argmax())]
    outside = int(samples.process_used_bytes[at] - samples.reserved_bytes[at])
    return SharedDevice(max(outside, 0), int(samples.others_used_bytes[at]), int(samples.time_ns[at]))


def findings(found: SharedDevice) -> list[Finding]:
    """Return a finding if the others hold at least what one such context takes."""
    if not _LEAST_BYTES <= found.outside_bytes <= found.others_bytes:
        return []
    evidence = {
        "outside_bytes": found.outside_bytes,
        "others_bytes": found.others_bytes,
        "time_ns": found.time_ns,
    }
    return [worded(FindingKind.SHARED_DEVICE, found.outside_bytes, None, evidence)]


ANALYSIS = Analysis(
    "shared_device",
    "What does this process hold outside of torch while others share its device?",
    shared_device,
    findings,
)
