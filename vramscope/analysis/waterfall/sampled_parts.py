"""Splits torch's reserved bytes into parts at each sample.

The parts come from a nearby instant of the trace at which all quantities equal the sample's. If there is none
(no events, a pause of the recording, totals alone), they come from torch's counters alone.
"""

import numpy as np

from vramscope.allocator.replay.contradictions import instant_of_sample
from vramscope.analysis.fragmentation import parts_over_time
from vramscope.analysis.timeline import timeline
from vramscope.model.counters import UNKNOWN, Counters
from vramscope.model.recording import Recording
from vramscope.model.table import Array

PARTS_OF_RESERVED = ("requested", "rounding", "pending", "inactive_split", "releasable", "private_pools")


def reserved_parts(recording: Recording, counters: Counters) -> dict[str, Array]:
    """Return ``PARTS_OF_RESERVED`` and ``instant``, with one row per sample; −1 for what is not known."""
    found = _of_counters(counters)
    found["instant"] = np.full(len(counters), UNKNOWN)
    if not len(recording.trace) or not len(counters) or not recording.has_layout:
        return found
    instant = found["instant"] = _instants(recording, counters)
    rows = np.flatnonzero(instant >= 0)
    if len(rows):
        parts = parts_over_time(recording)
        for name in PARTS_OF_RESERVED:
            found[name][rows] = getattr(parts, f"{name}_bytes")[instant[rows]]
    return found


def _of_counters(counters: Counters) -> dict[str, Array]:
    allocated, active, requested = (counters.allocated_bytes, counters.active_bytes, counters.requested_bytes)
    reserved, split = counters.reserved_bytes, counters.inactive_split_bytes
    # Requests of pending blocks count as requested, but their blocks do not count as allocated.
    is_clear = (requested >= 0) & (active >= 0) & (active == allocated)
    has_all = (active >= 0) & (split >= 0) & (reserved >= 0)
    found = {
        "requested": np.where(is_clear, requested, UNKNOWN),
        "rounding": np.where(is_clear, allocated - requested, UNKNOWN),
        "pending": np.where((active >= 0) & (allocated >= 0), active - allocated, UNKNOWN),
        "inactive_split": np.where(has_all, split, UNKNOWN),
        "releasable": np.where(has_all, reserved - active - split, UNKNOWN),
    }
    return found | {"private_pools": np.full(len(counters), UNKNOWN)}


def _instants(recording: Recording, counters: Counters) -> Array:
    """Return the nearest instant at which all quantities equal the sample's; −1 if there is none."""
    levels = {name: level for name, level in timeline(recording).columns() if name != "time_ns"}
    times = np.maximum.accumulate(recording.trace.time_ns)
    near = np.searchsorted(times, counters.time_ns, side="right")
    known = np.where(counters.event >= 0, np.minimum(counters.event, len(times)), near)
    found = [instant_of_sample(counters, row, at, levels) for row, at in enumerate(known.tolist())]
    # A sample whose events the size cap removed has no instant, even if another one is equal by chance.
    is_past = (counters.time_ns < recording.initial.time_ns) & (recording.past.n_events > 0)
    return np.where(is_past, UNKNOWN, np.array(found, dtype="i8"))
