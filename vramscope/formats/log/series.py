"""Collects what a text says of each rank and device, in its order, and makes recordings of it."""

import math
import re
from collections.abc import Iterator

import numpy as np

from vramscope.formats._totals_trace import NO_LAYOUT, TotalsAt, TotalsTrace
from vramscope.formats.log.oom_messages import Message
from vramscope.formats.log.patterns import column_words, table_rows
from vramscope.formats.log.places import MOST_ROWS, LoggedSeries, LogMoment, PlaceFigures, RunsAtPlace, Sample
from vramscope.formats.log.summaries import SummaryTable
from vramscope.model.codes import NoteCode
from vramscope.model.counters import UNKNOWN, Counters
from vramscope.model.device import Device, Process
from vramscope.model.marks import MarkKind, Marks, Note, Steps
from vramscope.model.recording import Recording
from vramscope.units import format_bytes

_MOST_NOTED = 20
_DRIVERS = frozenset({"device_used", "device_total", "device_free", "process_used", "others_used"})
_NOT_TORCH = ("JAX", "MLX", "TensorFlow")
_NOTES = {row[1]: Note(NoteCode(row[2]), row[3]) for row in table_rows() if row[0] == "note"}


_MOST_PLACES = 1 << 14
"""Ranks and devices of one text; what is said of more is left out, with a note."""


class Figures:
    """What a text says, by rank and device."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], RunsAtPlace] = {}
        self._has_more = False

    def at(self, rank: int, device: int, moment: LogMoment | None = None) -> PlaceFigures:
        """Return the run of that rank and device that a line of that moment belongs to."""
        place = self._of(rank, device).at(moment or LogMoment())
        place.most_rows = MOST_ROWS // len(self._places)
        return place

    def fail(self, message: Message) -> None:
        """Add a message of an error."""
        self._of(message.rank, message.device).fail(message)

    def end_attempt(self) -> None:
        """Note that what follows is another attempt, in each place."""
        for place in self._places.values():
            place.runs[-1].is_over = True

    def _of(self, rank: int, device: int) -> RunsAtPlace:
        key = (rank, max(device, 0))
        if key in self._places or len(self._places) < _MOST_PLACES:
            return self._places.setdefault(key, self._places.get(key) or RunsAtPlace(*key))
        self._has_more = True
        return RunsAtPlace(*key)

    @property
    def notes(self) -> tuple[Note, ...]:
        """What of the text is left out."""
        text = f"it names more than {_MOST_PLACES:,} ranks and devices: what it says of others is left out"
        return (Note(NoteCode.TRUNCATED, text, _MOST_PLACES),) if self._has_more else ()

    def recordings(self) -> tuple[Recording, ...]:
        """Return one recording for each run of each rank and device."""
        runs = [run for _, place in sorted(self._places.items()) for run in place.settled()]
        for run in runs:
            run.settle()
        return tuple(_recording(run) for run in runs if run.items)

    def __bool__(self) -> bool:
        return any(any(place.runs) for place in self._places.values())


def _recording(place: PlaceFigures) -> Recording:
    builder, events = TotalsTrace(), list[int]()
    messages = [item for item in place.items if isinstance(item, Message)]
    for item in place.items:
        if isinstance(item, Message):
            _fail(builder, item)
        elif isinstance(item, SummaryTable):
            for state in item.states:
                builder.set_totals(state)
        events.append(len(builder))
    rows = [
        (item, event)
        for item, event in zip(place.items, events, strict=True)
        if not isinstance(item, SummaryTable)
    ]
    samples = [item for item in place.items if isinstance(item, Sample)]
    times = _times([item for item, _ in rows], len(samples))
    counters = _counters(rows, times, with_events=bool(len(builder)))
    tables = [item for item in place.items if isinstance(item, SummaryTable)]
    pid = next((sample.pid for sample in reversed(samples) if sample.pid), 0)
    return Recording(
        source=_source(place, messages, tables),
        process=Process(rank=place.rank, pid=pid, command=place.command, restarts=place.number - 1),
        device=Device(place.device, place.kind, place.name, int(counters.device_total_bytes.max(initial=0))),
        trace=builder.trace(),
        marks=_marks(rows),
        counters=counters,
        steps=_steps(samples, times) if len(samples) == len(rows) else Steps.of(),
        notes=tuple(dict.fromkeys(_notes(place, samples, messages, tables, times))),
    )


def _source(place: PlaceFigures, messages: list[Message], tables: list[SummaryTable]) -> str:
    if messages or tables:
        return "snapshot"
    return "telemetry" if {series.column for series in place.most} <= _DRIVERS else "log"


def _fail(builder: TotalsTrace, message: Message) -> None:
    if "allocated" in message.known:
        allocated = message.known["allocated"]
        builder.set_totals(TotalsAt(allocated, allocated, allocated, message.reserved))
    builder.fail(message.requested)


def _times(rows: list[Sample | Message], n_samples: int) -> list[int]:
    """Return a time for each row: the file's own, the one before where a row has none, or their order."""
    own = [row.moment.time_ns if isinstance(row, Sample) else 0 for row in rows]
    if n_samples and any(own):
        return np.maximum.accumulate(np.array(own, dtype="i8")).tolist()
    return list(range(len(rows))) if n_samples > 1 else [0] * len(rows)


def _values(row: Sample | Message) -> dict[str, int]:
    if isinstance(row, Sample):
        return dict(row.values)
    known = row.known
    # On Apple's chips what is allocated is reserved.
    says = row.kind == "mps" or {"reserved", "unallocated"} & known.keys()
    found = {"allocated": known.get("allocated", UNKNOWN), "reserved": row.reserved if says else UNKNOWN}
    found |= {"device_total": known.get("capacity", UNKNOWN), "process_used": known.get("process", UNKNOWN)}
    if known.get("capacity", UNKNOWN) >= known.get("free", math.inf):
        found["device_used"] = known["capacity"] - known["free"]
    return found


def _counters(rows: list[tuple[Sample | Message, int]], times: list[int], *, with_events: bool) -> Counters:
    values = [_completed(_values(row)) for row, _ in rows]
    columns = {
        name: [each.get(name.removesuffix("_bytes"), UNKNOWN) for each in values]
        for name in Counters.DTYPES
        if name.endswith("_bytes")
    }
    busy = [row.utilization_percent if isinstance(row, Sample) else UNKNOWN for row, _ in rows]
    events = [event if with_events else UNKNOWN for _, event in rows]
    return Counters.of(time_ns=times, event=events, utilization_percent=busy, **columns)


def _completed(values: dict[str, int]) -> dict[str, int]:
    """Return *values* with what follows from two of total, used and free."""
    total, used, free = (values.get(f"device_{name}", UNKNOWN) for name in ("total", "used", "free"))
    if used < 0 and total >= free >= 0:
        values["device_used"] = total - free
    if "used" in values:
        values.setdefault("device_used", values["used"])
    if "spared" in values and total >= values["spared"]:
        values["allocated_peak"] = total - values["spared"]
    if "start" in values and values.keys() & {"grown", "above"}:
        values["allocated_peak"] = values["start"] + values.get("grown", 0) + values.get("above", 0)
    return values


def _marks(rows: list[tuple[Sample | Message, int]]) -> Marks:
    free = [(row.known["free"], at) for row, at in rows if isinstance(row, Message) and "free" in row.known]
    return Marks.of(
        kind=[MarkKind.OOM] * len(free), value=[n_bytes for n_bytes, _ in free], event=[at for _, at in free]
    )


def _steps(samples: list[Sample], times: list[int]) -> Steps:
    steps = [(sample.moment.step, end) for sample, end in zip(samples, times, strict=True)]
    ends = {step: end for step, end in steps if step >= 0}
    if len(set(ends.values())) < len(ends) or list(ends) != sorted(ends):
        return Steps.of()
    until = list(ends.values())
    starts = [*until[:1], *(end + 1 for end in until[:-1])]
    return Steps.of(
        index=list(ends),
        start_event=[0] * len(ends),
        end_event=[0] * len(ends),
        start_ns=starts,
        end_ns=until,
    )


def _notes(
    place: PlaceFigures,
    samples: list[Sample],
    messages: list[Message],
    tables: list[SummaryTable],
    times: list[int],
) -> Iterator[Note]:
    for series, most in list(place.most.items())[:_MOST_NOTED]:
        yield _series_note(series, most)
    if place.of > 1 or place.n_begun:
        yield _several(place)
    yield from _of_messages(messages)
    yield from tables[-1].notes if tables else ()
    for (pid, name), n_bytes in sorted(place.others.items(), key=lambda each: -each[1])[:_MOST_NOTED]:
        text = f"process {pid} ({name[:100]}) used up to {format_bytes(n_bytes)} of the same device"
        yield Note(NoteCode.OTHER_PROCESS, text, n_bytes)
    if len(samples) > 1 and times[-1] < len(times):
        yield _NOTES["no clock"]
    if messages:
        yield _NOTES["message"]
    elif samples and not tables:
        yield _NOTES[_source(place, messages, tables)]
    if messages or tables:
        yield NO_LAYOUT


def _series_note(series: LoggedSeries, most: int) -> Note:
    what = column_words().get(series.column, "")
    if series.origin in _NOT_TORCH:
        what = re.sub(r"\btorch\b", "its allocator", what)
    return Note(
        NoteCode.SERIES, f"{series.name} of {series.origin}: {what}; highest {format_bytes(most)}", most
    )


def _several(place: PlaceFigures) -> Note:
    if place.of == 1:
        text = "the steps begin again, as with epochs or lines of several processes: it is shown as one run"
        return Note(NoteCode.SEVERAL_RUNS, text, place.n_begun)
    after = place.begins_after
    why = f"the steps begin again after step {after}" if after >= 0 else "it follows another one"
    text = f"run {place.number} of {place.of} in this file" + (f": {why}" if place.number > 1 else "")
    return Note(NoteCode.SEVERAL_RUNS, text, place.of)


_CUT = ("is cut before it says", "are cut before they say")


def _of_messages(messages: list[Message]) -> Iterator[Note]:
    """Yield the values that have no column; only of the last messages if there are many."""
    for message in messages[-_MOST_NOTED:]:
        yield from _of_one(message)
    n_cut = sum("allocated" not in message.known for message in messages)
    if n_cut:
        does, do = ("does not say", "do not say") if messages[-1].kind == "unknown" else _CUT
        cut = f"one message {does}" if n_cut == 1 else f"{n_cut} messages {do}"
        yield Note(NoteCode.TRUNCATED, f"{cut} what was allocated: it is not known there", n_cut)


def _of_one(message: Message) -> Iterator[Note]:
    known = message.known
    words = {
        "process": (NoteCode.PROCESS_USED, "in use by this process, context and libraries included"),
        "pools": (NoteCode.PRIVATE_POOLS, "of the allocated memory in private pools, as of CUDA graphs"),
        "limit": (NoteCode.LIMIT, "allowed to this process (set_per_process_memory_fraction)"),
    }
    for name, (code, text) in words.items():
        if name in known:
            yield Note(code, f"{format_bytes(known[name])} {text}", known[name])
    for pid, n_bytes in message.others[:_MOST_NOTED]:
        yield Note(
            NoteCode.OTHER_PROCESS, f"process {pid} had {format_bytes(n_bytes)} of the same device", n_bytes
        )
