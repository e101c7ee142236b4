"""Export as a trace for Perfetto (https://ui.perfetto.dev): counters, steps, phases and findings in time.

Tracks of one recording stand under one process. Counters are allocated and reserved bytes and the allocated
bytes of each category. A million events take under 20 MB. A counter with more than ``MOST_POINTS`` changes is
downsampled: of each stretch of events its first, smallest and largest value are kept, so that every maximum
is exact.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vramscope.analysis.categories import assign
from vramscope.analysis.lifetimes import lifetimes, summed
from vramscope.analysis.timeline import timeline
from vramscope.errors import MissingExtraError
from vramscope.export import Export
from vramscope.export.live_stacks import title
from vramscope.model.marks import Category, MarkKind, Phase
from vramscope.model.recording import Recording, Run
from vramscope.model.table import Array

MOST_POINTS = 120_000
"""Points of one counter: about 26 bytes each in the file, so allocated and reserved take 6 MB."""
_NS_PER_EVENT = 1_000
"""Distance of two events of a recording without a clock."""

_Event = tuple[int, str, Any]
"""The time in nanoseconds, the type as Perfetto names it, and the value of a counter or a name."""


def write(run: Run, path: Path) -> list[Path]:
    """Write one trace with the tracks of every recording; raises MissingExtraError without ``perfetto``."""
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos
    except ImportError:
        raise MissingExtraError("perfetto", "perfetto") from None
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
        packet = self._protos.TracePacket(trusted_packet_sequence_id=self._process)
        packet.track_descriptor.uuid = self._process
        packet.track_descriptor.process.pid = self._number + 1
        packet.track_descriptor.process.process_name = title(recording)
        yield packet
        for name, events in _tracks(recording):
            if events:
                uuid, described = self._track(name, is_counter=events[0][1] == "COUNTER")
                yield described
                yield from (self._packet(uuid, event) for event in events)

    def _track(self, name: str, *, is_counter: bool) -> tuple[int, Any]:
        uuid = self._uuid()
        packet = self._protos.TracePacket(trusted_packet_sequence_id=uuid, sequence_flags=1)
        packet.trace_packet_defaults.track_event_defaults.track_uuid = uuid
        described = packet.track_descriptor
        described.uuid, described.parent_uuid, described.name = uuid, self._process, name
        if is_counter:
            described.counter.unit = self._protos.CounterDescriptor.UNIT_SIZE_BYTES
        return uuid, packet

    def _packet(self, uuid: int, event: _Event) -> Any:
        time_ns, kind, value = event
        packet = self._protos.TracePacket(
            trusted_packet_sequence_id=uuid, sequence_flags=2, timestamp=time_ns
        )
        packet.track_event.type = getattr(self._protos.TrackEvent, f"TYPE_{kind}")
        if kind == "COUNTER":
            packet.track_event.counter_value = value
        elif value is not None:
            packet.track_event.name = value
        return packet


def _tracks(recording: Recording) -> Iterator[tuple[str, Sequence[_Event]]]:
    """Yield every track: the totals, the bytes of each category, steps, phases, findings and failures."""
    time_ns = _times(recording)
    totals = timeline(recording)
    yield "allocated", _counter(time_ns, totals.allocated_bytes)
    if recording.has_reserved:
        yield "reserved", _counter(time_ns, totals.reserved_bytes)
    for category, n_bytes in _by_category(recording):
        yield f"allocated: {category.name.lower()}", _counter(time_ns, n_bytes)
    steps = recording.steps
    yield "steps", _slices(steps, [f"step {index}" for index in steps.index.tolist()], time_ns)
    # A track for the phases of each depth: on one track slices must not overlap.
    phases = recording.phases
    for depth in np.unique(phases.depth).tolist():
        rows = phases.rows(phases.depth == depth)
        names = [
            ": ".join(filter(None, (Phase(phase).name.lower(), phases.names[name])))
            for phase, name in zip(rows.phase.tolist(), rows.name.tolist(), strict=True)
        ]
        yield "phases" if depth == 0 else f"phases, depth {depth}", _slices(rows, names, time_ns)
    yield "findings", [(int(time_ns[-1]), "INSTANT", each.claim) for each in recording.findings()]
    ooms = recording.marks.event[recording.marks.kind == MarkKind.OOM]
    yield "out of memory", [(int(time_ns[at]), "INSTANT", "out of memory") for at in ooms.tolist()]


def _counter(time_ns: Array, n_bytes: Array) -> list[_Event]:
    """Return the changes of a counter, at the rows where it is drawn."""
    rows = points(n_bytes)
    return [
        (at, "COUNTER", value)
        for at, value in zip(time_ns[rows].tolist(), n_bytes[rows].tolist(), strict=True)
    ]


def _slices(spans: Any, names: Sequence[str], time_ns: Array) -> list[_Event]:
    """Return the beginnings and ends of steps or phases, which do not overlap."""
    rows = zip(time_ns[spans.start_event].tolist(), time_ns[spans.end_event].tolist(), names, strict=True)
    return [
        event
        for start_ns, end_ns, name in rows
        for event in ((start_ns, "SLICE_BEGIN", name), (end_ns, "SLICE_END", None))
    ]


def points(values: Array, most: int = MOST_POINTS) -> Array:
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


def _times(recording: Recording) -> Array:
    """Return the time of each instant in nanoseconds, never falling; by event number without a clock."""
    time_ns = timeline(recording).time_ns
    if recording.trace.has_clock:
        return np.maximum.accumulate(time_ns)
    return np.arange(len(time_ns), dtype="i8") * _NS_PER_EVENT


def _by_category(recording: Recording) -> Iterator[tuple[Category, Array]]:
    found = lifetimes(recording)
    category = assign(recording, found).category
    for each in np.unique(category).tolist():
        mine = found.rows(category == each)
        yield Category(each), summed(mine, mine.block_size, len(recording.trace)).astype("i8")


EXPORT = Export("perfetto", "counters, steps, phases and findings for ui.perfetto.dev", write)
