"""Whose the memory outside of the allocator was when a request failed, as far as samples prove it.

A sample is of another moment than the failure. What was there at the failure and at no sample is of no party:
either this process or another may have taken it.
"""

from dataclasses import dataclass

import numpy as np

from vramscope.analysis.waterfall import outside_parts
from vramscope.model.counters import UNKNOWN, Counters
from vramscope.model.recording import Recording
from vramscope.model.table import Array

_SOON_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Outside:
    """The bytes outside of the allocator that samples prove to be of a party; −1 where none says anything."""

    own_bytes: int = UNKNOWN
    """Bytes of this process: context, libraries, NCCL, raw cudaMalloc."""
    growth_bytes: int = UNKNOWN
    """Growth of ``own_bytes`` since the first sample at which torch had reserved something."""
    others_bytes: int = UNKNOWN
    """Bytes of other processes."""


def outside_at(recording: Recording, event: int, held_bytes: int) -> Outside:
    """Return whose memory lay outside of the allocator at the failure *event*.

    *held_bytes* are all bytes outside, by the driver's answer to the failed request; −1 if not known.
    """
    if recording.source == "predicted":  # a program run dry is alone on its card, with its context
        return Outside(held_bytes, 0, 0)
    samples = samples_until(recording, event)
    if _has_instants(recording.counters):
        clear, held_bytes = samples, UNKNOWN
        around = samples.rows(np.arange(len(samples))[-1:])
    else:
        clear = samples.rows(_is_clear(samples))
        around = Counters.joined(clear.rows(np.arange(len(clear))[-1:]), _soon_after(recording, event))
    parts = outside_parts(around)
    levels = np.array([parts[name] for name in ("own_outside", "others", "unattributed")])
    if not len(around) or parts["own_outside"].min() < 0:
        return Outside()
    own, others, _ = _least(levels, held_bytes).tolist()
    return Outside(own, _growth(clear, own), others if parts["others"].min() >= 0 else UNKNOWN)


def samples_until(recording: Recording, event: int) -> Counters:
    """Return the samples up to the failure: by instant if they have one, else by the clock."""
    counters, time_ns = recording.counters, int(recording.trace.time_ns[event])
    if not _has_instants(counters):
        return counters.rows(counters.time_ns <= time_ns)
    # Of several samples at that instant the first is the failure's: a log goes on after it.
    until = int(np.searchsorted(counters.event, event + 1))
    has_own = until < len(counters) and counters.event[until] == event + 1
    return counters.rows(np.arange(until + has_own))


def _has_instants(counters: Counters) -> bool:
    """Return whether samples have an instant: those of messages in a log are of the failure itself."""
    return bool((counters.event >= 0).all())


def _is_clear(counters: Counters) -> Array:
    """Return which samples say what this process held: not those during which the allocator's bytes moved."""
    is_sampled = (counters.process_used_bytes >= 0) & (counters.reserved_bytes >= 0)
    return is_sampled & (counters.reserved_drift_bytes <= 0)


def _soon_after(recording: Recording, event: int) -> Counters:
    """Return the first clear sample within a second after the failure."""
    counters, time_ns = recording.counters, int(recording.trace.time_ns[event])
    is_after = (counters.time_ns > time_ns) & (counters.time_ns <= time_ns + _SOON_NS)
    return counters.rows(np.flatnonzero(is_after & _is_clear(counters))[:1])


def _least(levels: Array, held_bytes: int) -> Array:
    """Return the least that a party held at the failure; *levels* has a row a party, a column a sample.

    A party changed as the sum did, and between two samples it held no more than at the higher one and no less
    than at the lower one.
    """
    least, most = np.maximum(levels.min(axis=1), 0), levels.max(axis=1)
    if held_bytes < 0:
        return least
    # Whoever gave memory back, or took it after the failure: it may have been all of one party's.
    surely = least - max(int(least.sum()) - held_bytes, 0)
    if levels.shape[1] > 1 and levels.min() >= 0 and held_bytes <= most.sum():
        surely = np.maximum(surely, held_bytes - (most.sum() - most))
    return np.maximum(surely, 0)


def _growth(clear: Counters, own_bytes: int) -> int:
    """Return by how much *own_bytes* exceed what this process held at first."""
    # CUDA's context is complete once torch has reserved something; before that, what grows is the context.
    complete = clear.rows(clear.reserved_bytes > 0)
    own = outside_parts(complete)["own_outside"]
    own = own[own >= 0]
    # Samples of single moments may be of different programs: nothing grows from one to the next.
    return max(own_bytes - int(own[0]), 0) if len(own) and clear.time_ns[-1] > 0 else 0
