"""Bytes that this process holds outside of torch's allocator while other processes use the same device.

Each process that uses CUDA has a context of its own, with kernels and libraries, so N processes on one device
pay for N of them. The driver's counters show the bytes of this process and the sum of the others.
"""

import numpy as np

from vramscope.analysis import Analysis
from vramscope.analysis.worded import worded
from vramscope.model.codes import FindingKind
from vramscope.model.finding import Finding
from vramscope.model.recording import Recording

_LEAST_BYTES = 64 << 20
"""Contexts of CUDA take 200 to 600 MiB; a process without one, such as a monitor, takes a few MiB."""


def shared_device(recording: Recording) -> list[Finding]:
    """Find what this process holds outside of torch's allocator while other processes share its device.

    Only samples count during which torch's reserved bytes did not change, so that torch's counter and the
    driver's are of one moment.
    """
    samples = recording.counters
    is_known = (samples.process_used_bytes > 0) & (samples.reserved_bytes >= 0)
    rows = np.flatnonzero(is_known & (samples.others_used_bytes > 0) & (samples.reserved_drift_bytes == 0))
    if not len(rows):
        return []
    at = rows[int(samples.others_used_bytes[rows].argmax())]
    outside = max(int(samples.process_used_bytes[at] - samples.reserved_bytes[at]), 0)
    others = int(samples.others_used_bytes[at])
    # The others together hold at least what one such context takes.
    if not _LEAST_BYTES <= outside <= others:
        return []
    evidence = {"outside_bytes": outside, "others_bytes": others, "time_ns": int(samples.time_ns[at])}
    return [worded(FindingKind.SHARED_DEVICE, outside, None, evidence)]


ANALYSIS = Analysis(
    "shared_device",
    "What does this process hold outside of torch while others share its device?",
    shared_device,
    list,
)
