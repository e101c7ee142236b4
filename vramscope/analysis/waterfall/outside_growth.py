"""Growth of memory outside of torch's allocator while the program trains, and when it happened.

The bytes that CUDA's context and libraries take until the end of the first step are no growth. If fewer than
two steps are known, the context is assumed to be complete once torch has reserved something, and growth of
this process below ``_LIBRARIES_BYTES`` is attributed to libraries that load on first use. Samples during
which the allocator's own bytes moved are inexact about outside memory, and are left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from vramscope.model.recording import Recording
from vramscope.model.table import Array

_LEAST_BYTES = 64 << 20
_LEAST_SHARE = 0.005
"""Share of the device below which growth is not reported."""
_LIBRARIES_BYTES = 1 << 30
"""A context with cuBLAS, cuDNN and NCCL loaded takes 300 to 900 MiB, part of it on first use."""
_NAMES_OF_OTHERS = ("others",)


@dataclass(frozen=True, slots=True)
class Grown:
    """The growth of one part, from its level after the first step to its highest lasting level."""

    n_bytes: int
    """Bytes that it grew by."""
    largest_rise_bytes: int
    """The largest growth from one sample to the next, in bytes."""
    time_ns: int
    """Time of the largest rise."""
    step: int | None
    """Step of the largest rise; None if not known."""
    inside_bytes: int
    """Change of torch's reserved bytes over the same time."""
    still_there_bytes: int
    """Bytes of the growth that remain at the end."""


@dataclass(frozen=True, slots=True)
class OutsideGrowth:
    """The parts outside of the allocator that grew."""

    grown: Mapping[str, Grown] = field(default_factory=dict)
    """Growth of ``own_outside`` and ``others``, or of ``outside`` if these two cannot be distinguished."""


def growth_of(recording: Recording, columns: Mapping[str, Array]) -> OutsideGrowth:
    """Return the growth of each part, from the columns of a waterfall."""
    is_clear = (columns["used"] >= 0) & (columns["reserved"] >= 0) & (columns["drift"] <= 0)
    has_steps = len(recording.steps) > 1
    if has_steps:
        is_clear &= columns["time_ns"] >= int(recording.steps.end_ns[0])
    else:
        is_clear &= columns["time_ns"] >= _first_reserved_ns(columns)
    rows = np.flatnonzero(is_clear)
    # Without a clock the samples are moments of their own: messages in one file may be of several programs.
    if len(rows) < 2 or not columns["time_ns"].any():
        return OutsideGrowth()
    series = {"own_outside": columns["own_outside"][rows], "others": columns["others"][rows]}
    if min(level.min() for level in series.values()) < 0:
        # Levels that are unknown at some samples cannot be compared.
        series = {"outside": (columns["used"] - columns["reserved"])[rows]}
    total = int(columns["total"][rows].max())
    least = max(_LEAST_BYTES, int(_LEAST_SHARE * max(total, 0)))
    found = {name: _grown(recording, columns, rows, level) for name, level in series.items()}
    own = least if has_steps else max(least, _LIBRARIES_BYTES)
    needed = {name: least if name in _NAMES_OF_OTHERS else own for name in found}
    return OutsideGrowth({name: grown for name, grown in found.items() if grown.n_bytes >= needed[name]})


def _first_reserved_ns(columns: Mapping[str, Array]) -> int:
    """Return the time of the first sample with reserved bytes; 0 if there is none."""
    rows = np.flatnonzero(columns["reserved"] > 0)
    return int(columns["time_ns"][rows[0]]) if len(rows) else 0


def _grown(recording: Recording, columns: Mapping[str, Array], rows: Array, level: Array) -> Grown:
    # A level that two samples in a row have is no artifact of counters read a moment apart.
    lasting = np.minimum(level, np.append(level[1:], level[-1]))
    high = int(lasting.argmax())
    rises = np.diff(level[: high + 1])
    at = int(rises.argmax()) + 1 if len(rises) else 0
    time_ns = int(columns["time_ns"][rows[at]])
    reserved = columns["reserved"][rows]
    return Grown(
        n_bytes=int(lasting[high] - level[0]),
        largest_rise_bytes=int(rises.max(initial=0)),
        time_ns=time_ns,
        step=_step_at(recording, time_ns),
        inside_bytes=int(reserved[high] - reserved[0]),
        still_there_bytes=max(int(level[-1] - level[0]), 0),
    )


def _step_at(recording: Recording, time_ns: int) -> int | None:
    steps = recording.steps
    at = int(np.searchsorted(steps.start_ns, time_ns, side="right")) - 1
    return int(steps.index[at]) if at >= 0 and time_ns <= steps.end_ns[at] else None
