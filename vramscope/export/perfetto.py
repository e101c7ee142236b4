"""Export as a trace for Perfetto (https://ui.perfetto.dev): counters, steps, phases and findings in time.

Tracks of one recording stand under one process. Counters are allocated and reserved bytes and the allocated
bytes of each category. A million events take under 20 MB, and every maximum is exact.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vramscope.errors import MissingExtraError
from vramscope.export import Export
from vramscope.export.live_stacks import title
from vramscope.export.tracks import Counter, Instants, Slices, tracks
from vramscope.model.recording import Recording, Run


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
        yield self._process_track(recording)
        for track in tracks(recording):
            if isinstance(track, Counter):
                yield from self._counter(track)
            elif isinstance(track, Slices):
                yield from self._slices(track)
            else:
                yield from self._instants(track)

    def _process_track(self, recording: Recording) -> Any:
        packet = self._protos.TracePacket(trusted_packet_sequence_id=self._process)
        packet.track_descriptor.uuid = self._process
        packet.track_descriptor.process.pid = self._number + 1
        packet.track_descriptor.process.process_name = title(recording)
        return packet

    def _track(self, name: str, *, is_counter: bool = False) -> tuple[int, Any]:
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

    def _counter(self, track: Counter) -> Iterator[Any]:
        uuid, described = self._track(track.name, is_counter=True)
        yield described
        for at, value in zip(track.time_ns.tolist(), track.n_bytes.tolist(), strict=True):
            packet = self._event(uuid, at)
            packet.track_event.type = self._protos.TrackEvent.TYPE_COUNTER
            packet.track_event.counter_value = value
            yield packet

    def _slices(self, track: Slices) -> Iterator[Any]:
        if not track.spans:
            return
        uuid, described = self._track(track.name)
        yield described
        for start_ns, end_ns, label in track.spans:
            packet = self._event(uuid, start_ns)
            packet.track_event.type = self._protos.TrackEvent.TYPE_SLICE_BEGIN
            packet.track_event.name = label
            yield packet
            packet = self._event(uuid, end_ns)
            packet.track_event.type = self._protos.TrackEvent.TYPE_SLICE_END
            yield packet

    def _instants(self, track: Instants) -> Iterator[Any]:
        if not track.moments:
            return
        uuid, described = self._track(track.name)
        yield described
        for at, label in track.moments:
            packet = self._event(uuid, at)
            packet.track_event.type = self._protos.TrackEvent.TYPE_INSTANT
            packet.track_event.name = label
            yield packet


EXPORT = Export("perfetto", "counters, steps, phases and findings for ui.perfetto.dev", write)
