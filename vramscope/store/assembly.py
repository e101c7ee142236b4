"""Which recording do the streams of one device make?"""

from collections.abc import Iterable
from datetime import datetime, timezone

from vramscope.model.device import Device
from vramscope.model.marks import Note
from vramscope.model.program import resolve
from vramscope.model.recording import Outcome, Recording
from vramscope.model.snapshot import Snapshot
from vramscope.model.stacks import Stacks
from vramscope.store import repair
from vramscope.store.framing import StreamFile
from vramscope.store.manifest import Manifest
from vramscope.store.streams import ColumnStream, DeviceStreams
from vramscope.units import format_bytes, format_duration


def recording(
    manifest: Manifest, device: int, streams: DeviceStreams, stacks: Stacks, end_ns: int
) -> Recording:
    """Everything of one device; what points to rows that are not there is made harmless and noted."""
    n_events, pools = len(streams), streams.pool_ids()
    limits = {"stack_id": len(stacks), "pool": len(pools)}
    trace, in_trace = repair.keep_known(streams.table("events"), limits)
    initial, in_initial = repair.keep_known_state(streams.states.initial or Snapshot(), limits)
    final, in_final = _final(streams, limits)
    marks = repair.marks_within(streams.table("marks"), n_events)
    steps, phases = resolve(marks, n_events, end_ns)
    return Recording(
        source=manifest.source,
        process=manifest.process,
        device=next((known for known in manifest.devices if known.index == device), Device(device)),
        trace=trace,
        stacks=stacks,
        initial=initial,
        final=final,
        pools=pools,
        marks=marks,
        steps=steps,
        phases=phases,
        labels=repair.labels_within(streams.table("labels"), n_events),
        counters=repair.counters_within(streams.table("samples"), n_events),
        notes=tuple(stray_notes(in_trace + in_initial + in_final)),
    )


def _final(streams: DeviceStreams, limits: dict[str, int]) -> tuple[Snapshot | None, int]:
    """The reported state, where it is of the end: a truth about another moment would only mislead."""
    reported = streams.states.reported
    if reported is None or reported.event != len(streams):
        return None, 0
    return repair.keep_known_state(reported, limits)


def stacks_of(stream: ColumnStream) -> tuple[Stacks, list[Note]]:
    """Every call stack of a rank."""
    stacks, n_strays = repair.keep_known_parents(Stacks(**stream.columns(), strings=stream.names()))
    return stacks, stray_notes(n_strays)


def stray_notes(n_strays: int) -> list[Note]:
    """What to say of references to rows that are not there."""
    if not n_strays:
        return []
    text = f"{n_strays} references to call stacks or pools that the trace does not hold; they show as unknown"
    return [Note("unknown_references", text, n_strays)]


def written_notes(stream: ColumnStream, device: int) -> list[Note]:
    """What the recorder itself had to say of a device."""
    columns, names = stream.columns(), stream.names()
    rows = zip(*(columns[name].tolist() for name in ("device", "code", "text", "value")), strict=True)
    return [Note(names[code], names[text], value) for of, code, text, value in rows if of == device]


def file_notes(files: Iterable[StreamFile], outcome: Outcome) -> list[Note]:
    """What could not be read; an unfinished end of a file that is still written is nothing to say."""
    found = []
    for file in files:
        end = f"{file.path.parent.name}/{file.path.name} at byte {file.offset}"
        lost = format_bytes(file.unfinished_bytes)
        if file.damage:
            text = f"{end}: {file.damage}; the {lost} from there on were not read"
            found.append(Note("damaged", text, file.unfinished_bytes))
        elif file.unfinished_bytes and outcome is not Outcome.RUNNING:
            text = f"{end}: the last batch was never finished; its {lost} were dropped"
            found.append(Note("truncated", text, file.unfinished_bytes))
    return found


def obituary(started_ns: int, last_ns: int) -> Note:
    """Of a process that is gone without a word."""
    if not last_ns:
        return Note("died", "the process is gone and never closed the trace; nothing of it carries a time")
    when = datetime.fromtimestamp(last_ns // 10**9, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    after = f", {format_duration(last_ns - started_ns)} after the start" if 0 < started_ns <= last_ns else ""
    return Note("died", f"the process is gone and never closed the trace; its data reach until {when}{after}")
