"""A recording as tracks over time, for viewers of traces: counters, slices and instants.

A counter with more than ``MOST_POINTS`` changes is downsampled: of each stretch of events its first, smallest
and largest value are kept, so that every maximum is exact.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.categories import assign
from vramscope.analysis.lifetimes import Allocations, lifetimes
from vramscope.analysis.timeline import timeline
from vramscope.model.marks import Category, MarkKind, Phase
from vramscope.model.recording import Recording

MOST_POINTS = 120_000
"""Points of one counter: about 26 bytes each in a file of Perfetto, so allocated and reserved take 6 MB."""
_NS_PER_EVENT = 1_000
"""Distance of two events of a recording without a clock."""


@dataclass(frozen=True, slots=True, eq=False)
class Counter:
    """Bytes that hold from one time to the next."""

    name: str
    time_ns: NDArray[Any]
    n_bytes: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Slices:
    """Stretches of time with names, which do not overlap."""

    name: str
    spans: list[tuple[int, int, str]]
    """Start and end in nanoseconds, and the name."""


@dataclass(frozen=True, slots=True)
class Instants:
    """Moments in time, each with a name."""

    name: str
    moments: list[tuple[int, str]]
    """Time in nanoseconds, and the name."""


def tracks(recording: Recording) -> Iterator[Counter | Slices | Instants]:
    """Yield every track: the totals, the bytes of each category, steps, phases, findings and failures."""
    time_ns = _times(recording)
    totals = timeline(recording)
    yield counter("allocated", time_ns, totals.allocated_bytes)
    if recording.has_reserved:
        yield counter("reserved", time_ns, totals.reserved_bytes)
    for category, n_bytes in _by_category(recording):
        yield counter(f"allocated: {category.name.lower()}", time_ns, n_bytes)
    yield Slices("steps", _steps(recording, time_ns))
    for depth, slices in _phases(recording, time_ns):
        yield Slices("phases" if depth == 0 else f"phases, depth {depth}", slices)
    yield Instants("findings", [(int(time_ns[-1]), each.claim) for each in recording.findings()])
    ooms = recording.marks.event[recording.marks.kind == MarkKind.OOM]
    yield Instants("out of memory", [(int(time_ns[at]), "out of memory") for at in ooms.tolist()])


def counter(name: str, time_ns: NDArray[Any], n_bytes: NDArray[Any]) -> Counter:
    """Return the counter at the rows where it is drawn."""
    rows = points(n_bytes)
    return Counter(name, time_ns[rows], n_bytes[rows])


def points(values: NDArray[Any], most: int = MOST_POINTS) -> NDArray[Any]:
    """Return the rows at which a counter is drawn: every change, or the extremes of each stretch of events.

    Above *most* changes the counter is downsampled. Row 0 and the last row are among them.
    """
    last = len(values) - 1
    changes = np.flatnonzero(np.diff(values)) + 1
    rows = np.unique(np.concatenate([[0], changes, [last]]))
    if len(rows) <= most:
        return rows
    edges = np.linspace(0, len(values), most // 3 + 1).astype("i8")
    kept = [0, last]
    for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        stretch = values[start:end]
        kept += [start, start + int(stretch.argmin()), start + int(stretch.argmax())]
    return np.unique(kept)


def _times(recording: Recording) -> NDArray[Any]:
    """Return the time of each instant in nanoseconds, never falling; by event number without a clock."""
    time_ns = timeline(recording).time_ns
    if recording.trace.has_clock:
        return np.maximum.accumulate(time_ns)
    return np.arange(len(time_ns), dtype="i8") * _NS_PER_EVENT


def _by_category(recording: Recording) -> Iterator[tuple[Category, NDArray[Any]]]:
    found = lifetimes(recording)
    category = assign(recording, found).category
    for each in np.unique(category).tolist():
        yield Category(each), _allocated(found.rows(category == each), len(recording.trace))


def _allocated(found: Allocations, n_events: int) -> NDArray[Any]:
    change = np.zeros(n_events + 1, "i8")
    served = found.rows(found.free_event >= -1)
    np.add.at(change, served.alloc_event + 1, served.block_size)
    freed = served.rows(served.free_event >= 0)
    np.add.at(change, freed.free_event + 1, -freed.block_size)
    return np.cumsum(change)


def _steps(recording: Recording, time_ns: NDArray[Any]) -> list[tuple[int, int, str]]:
    steps = recording.steps
    rows = zip(steps.index.tolist(), time_ns[steps.start_event], time_ns[steps.end_event], strict=True)
    return [(int(start), int(end), f"step {index}") for index, start, end in rows]


def _phases(recording: Recording, time_ns: NDArray[Any]) -> Iterator[tuple[int, list[tuple[int, int, str]]]]:
    """Yield the phases of each depth: on one track slices must not overlap."""
    phases = recording.phases
    for depth in np.unique(phases.depth).tolist():
        rows = phases.rows(phases.depth == depth)
        columns = (rows.phase, rows.name, time_ns[rows.start_event], time_ns[rows.end_event])
        yield (
            depth,
            [
                (int(start), int(end), _phase_name(Phase(phase), phases.names[name]))
                for phase, name, start, end in zip(*(each.tolist() for each in columns), strict=True)
            ],
        )


def _phase_name(phase: Phase, name: str) -> str:
    word = phase.name.lower()
    return f"{word}: {name}" if name else word
