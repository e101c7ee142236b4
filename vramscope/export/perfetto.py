"""Export as a trace for Perfetto (https://ui.perfetto.dev): counters, steps, phases and findings in time.

Tracks of one recording stand under one process. Counters are allocated and reserved bytes and the allocated
bytes of each category. A counter with more than ``MOST_POINTS`` changes is downsampled: of each stretch of
events its first, smallest and largest value are kept, so that every maximum is exact and a million events
take under 20 MB.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.categories import assign
from vramscope.analysis.lifetimes import Allocations, lifetimes
from vramscope.analysis.timeline import timeline
from vramscope.errors import MissingExtraError
from vramscope.export import Export
from vramscope.export._live_stacks import title
from vramscope.model.marks import Category, MarkKind, Phase
from vramscope.model.recording import Recording, Run

MOST_POINTS = 120_000
"""Points of one counter: about 26 bytes each, so that allocated and reserved take 6 MB."""
_NS_PER_EVENT = 1_000
"""Distance of two events of a recording without a clock."""


def write(run: Run, path: Path) -> list[Path]:
    """Write one trace with the tracks of every recording; raises MissingExtraError without ``perfetto``."""
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos
    except ImportError:
        raise MissingExtraError("perfetto", "perfetto") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for number, recording in enumerate(run.recordings):
            for packet in _Packets(protos, number).of(recording):
                # A trace is a message whose only field repeats packets: one at a time is the same bytes.
                file.write(protos.Trace(packet=[packet]).SerializeToString())
    return [path]


class _Packets:
    """The packets of one recording; each track is a sequence of its own, so that its uuid is written once."""

    def __init__(self, protos: Any, number: int) -> None:
        self._protos = protos
        self._number = number
        self._tracks = 0
        self._process = self._uuid()

    def _uuid(self) -> int:
        """Return an id for the next track; Perfetto needs them unique in the whole file, and not 0."""
        self._tracks += 1
        return (self._number + 1) * 1_000_000 + self._tracks

    def of(self, recording: Recording) -> Iterator[Any]:
        time_ns = _times(recording)
        yield self._process_track(recording)
        totals = timeline(recording)
        yield from self._counter("allocated", time_ns, totals.allocated_bytes)
        if recording.has_reserved:
            yield from self._counter("reserved", time_ns, totals.reserved_bytes)
        for category, n_bytes in _by_category(recording):
            yield from self._counter(f"allocated: {category.name.lower()}", time_ns, n_bytes)
        yield from self._slices("steps", _steps(recording, time_ns))
        for depth, slices in _phases(recording, time_ns):
            yield from self._slices("phases" if depth == 0 else f"phases, depth {depth}", slices)
        yield from self._instants("findings", [(time_ns[-1], each.claim) for each in recording.findings()])
        ooms = recording.marks.event[recording.marks.kind == MarkKind.OOM]
        yield from self._instants("out of memory", [(time_ns[at], "out of memory") for at in ooms.tolist()])

    def _process_track(self, recording: Recording) -> Any:
        packet = self._protos.TracePacket(trusted_packet_sequence_id=self._process)
        packet.track_descriptor.uuid = self._process
        packet.track_descriptor.process.pid = self._number + 1
        packet.track_descriptor.process.process_name = title(recording)
        return packet

    def _track(self, name: str, *, is_counter: bool = False) -> tuple[int, Any]:
        """Return the id of a new track, and the packet that describes it and makes it the default."""
        uuid = self._uuid()
        packet = self._protos.TracePacket(trusted_packet_sequence_id=uuid, sequence_flags=1)
        packet.trace_packet_defaults.track_event_defaults.track_uuid = uuid
        described = packet.track_descriptor
        described.uuid, described.parent_uuid, described.name = uuid, self._process, name
        if is_counter:
            described.counter.unit = self._protos.CounterDescriptor.UNIT_SIZE_BYTES
        return uuid, packet

    def _event(self, uuid: int, time_ns: int) -> Any:
        return self._protos.TracePacket(
            trusted_packet_sequence_id=uuid, sequence_flags=2, timestamp=int(time_ns)
        )

    def _counter(self, name: str, time_ns: NDArray[Any], values: NDArray[Any]) -> Iterator[Any]:
        uuid, described = self._track(name, is_counter=True)
        yield described
        rows = points(values)
        for at, value in zip(time_ns[rows].tolist(), values[rows].tolist(), strict=True):
            packet = self._event(uuid, at)
            packet.track_event.type = self._protos.TrackEvent.TYPE_COUNTER
            packet.track_event.counter_value = value
            yield packet

    def _slices(self, name: str, slices: list[tuple[int, int, str]]) -> Iterator[Any]:
        if not slices:
            return
        uuid, described = self._track(name)
        yield described
        for start_ns, end_ns, label in slices:
            packet = self._event(uuid, start_ns)
            packet.track_event.type = self._protos.TrackEvent.TYPE_SLICE_BEGIN
            packet.track_event.name = label
            yield packet
            packet = self._event(uuid, end_ns)
            packet.track_event.type = self._protos.TrackEvent.TYPE_SLICE_END
            yield packet

    def _instants(self, name: str, instants: list[tuple[int, str]]) -> Iterator[Any]:
        if not instants:
            return
        uuid, described = self._track(name)
        yield described
        for at, label in instants:
            packet = self._event(uuid, at)
            packet.track_event.type = self._protos.TrackEvent.TYPE_INSTANT
            packet.track_event.name = label
            yield packet


def points(values: NDArray[Any], most: int = MOST_POINTS) -> NDArray[Any]:
    """Return the rows at which a counter is drawn: every change, or the extremes of each stretch of events.

    Parameters
    ----------
    values
        One value per instant, in bytes.
    most
        Above so many changes the counter is downsampled.

    Returns
    -------
    NDArray[Any]
        Row numbers in ascending order; row 0 and the last row are among them.
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
    """Yield each category that occurs, with its allocated bytes at every instant."""
    found = lifetimes(recording)
    category = assign(recording, found).category
    for each in np.unique(category).tolist():
        yield Category(each), _allocated(found.rows(category == each), len(recording.trace))


def _allocated(found: Allocations, n_events: int) -> NDArray[Any]:
    """Return the allocated bytes of the given blocks at every instant."""
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


EXPORT = Export("perfetto", "counters, steps, phases and findings for ui.perfetto.dev", write)
