"""Collects what a text says of each rank and device, in its order, and makes recordings of it."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from vramscope.formats._totals_trace import NO_LAYOUT, TotalsAt, TotalsTrace
from vramscope.formats.log.oom_messages import Message
from vramscope.formats.log.patterns import Amount
from vramscope.formats.log.summaries import SummaryTable
from vramscope.model.codes import NoteCode
from vramscope.model.counters import UNKNOWN, Counters
from vramscope.model.device import Device, Process
from vramscope.model.marks import MarkKind, Marks, Note, Steps
from vramscope.model.recording import Recording
from vramscope.units import format_bytes

_MOST_NOTED = 20
_MOST_ROWS = 1 << 16
"""The samples of a device that are kept; of more, neighbours become one that has the highest of both."""
_KINDS = {"AMD SMI": "hip", "MLX": "mps", "JAX memory_stats()": "unknown"}
_DRIVERS = frozenset({"device_used", "device_total", "device_free", "process_used", "others_used"})
_WORDS = {
    "allocated": "allocated by torch",
    "allocated_peak": "the most that torch had allocated until then",
    "reserved": "reserved by torch",
    "reserved_peak": "the most that torch had reserved until then",
    "active": "active in torch's allocator",
    "requested": "requested of torch's allocator",
    "inactive_split": "free in split blocks of torch's allocator",
    "device_used": "used on the device, by all processes",
    "device_total": "the device's total",
    "device_free": "free on the device",
    "process_used": "used by the process, as the driver counts",
    "host_resident": "resident memory of the host",
}
_MOMENTS_OF_MESSAGE = Note(
    NoteCode.MOMENTS_ONLY,
    "an error message gives totals at one moment, rounded to two decimals: what happened before, and by whom "
    "the memory was allocated, is not in it",
)
_MOMENTS_OF_LOG = Note(
    NoteCode.MOMENTS_ONLY,
    "a log has what the program printed, at those moments and as it rounded: peaks between them, and by whom "
    "the memory was allocated, are not in it",
)
_DRIVER_ONLY = Note(
    NoteCode.DRIVER_ONLY,
    "the driver counts whole devices and processes at moments: what torch allocated or cached, by whom, and "
    "peaks between two samples are not in this file",
)
_NO_CLOCK = Note(NoteCode.NO_CLOCK, "the figures have no time in this file: they are shown in their order")


class LogMoment(NamedTuple):
    """When something was printed; −1 and 0 where that is not known."""

    time_ns: int = 0
    step: int = UNKNOWN


class Sample(NamedTuple):
    """What one line says of one device, in bytes by column."""

    moment: LogMoment
    values: Mapping[str, int]
    pid: int = 0
    utilization_percent: int = UNKNOWN


class _LoggedSeries(NamedTuple):
    column: str
    origin: str
    name: str


class PlaceFigures:
    """Everything that a text says of one rank on one device, in its order."""

    def __init__(self, rank: int, device: int) -> None:
        self.rank, self.device = rank, device
        self.kind, self.name, self.command = "cuda", "", ""
        self.items: list[Sample | Message | SummaryTable] = []
        self.most: dict[_LoggedSeries, int] = {}
        self.others: dict[tuple[int, str], int] = {}
        self.processes: dict[int, PlaceFigures] = {}
        """What the file says of single processes."""
        self.n_samples = 0
        self._last_message: Message | None = None

    def add(self, amounts: Iterable[Amount], moment: LogMoment, pid: int = 0, busy: int = UNKNOWN) -> None:
        """Add the amounts of one line; of several in one column the highest counts."""
        values: dict[str, int] = {}
        for amount in amounts:
            column = amount.wording.column
            values[column] = max(amount.n_bytes, values.get(column, 0))
            series = _LoggedSeries(column, amount.wording.origin, amount.name)
            self.most[series] = max(amount.n_bytes, self.most.get(series, 0))
            self.kind = _KINDS.get(amount.wording.origin, self.kind)
        if not values and busy < 0:
            return
        last = self.items[-1] if self.items else None
        if isinstance(last, Sample) and _goes_on(last, values, moment, pid):
            self.items[-1] = last._replace(
                values={**last.values, **values}, moment=_later(last.moment, moment)
            )
            return
        self.items.append(Sample(moment, values, pid, busy))
        self.n_samples += 1
        if self.n_samples > _MOST_ROWS:
            self._thin()

    def process(self, pid: int, name: str) -> "PlaceFigures":
        """Return the place of one process on this device."""
        if pid not in self.processes:
            self.processes[pid] = PlaceFigures(self.rank, self.device)
            self.processes[pid].command = name
        return self.processes[pid]

    def other(self, pid: int, name: str, n_bytes: int) -> None:
        """Note what a process used of the device at most."""
        self.others[pid, name] = max(n_bytes, self.others.get((pid, name), 0))

    def settle(self) -> None:
        """Take the samples of the process that used most as the device's own, and note the others."""
        ordered = sorted(self.processes.items(), key=lambda each: -max(each[1].most.values(), default=0))
        for pid, place in ordered[1:]:
            self.other(pid, place.command, max(place.most.values(), default=0))
        for _, place in ordered[:1]:
            self.items, self.most, self.command = (
                [*self.items, *place.items],
                self.most | place.most,
                place.command,
            )
            self.n_samples += place.n_samples

    def fail(self, message: Message) -> None:
        """Add a message; one that is repeated at once, as in a log and then in the traceback, counts once."""
        if message != self._last_message:
            self.items.append(message)
            self.kind = message.kind
        self._last_message = message

    def _thin(self) -> None:
        kept: list[Sample | Message | SummaryTable] = []
        for item in self.items:
            last = kept[-1] if kept else None
            if isinstance(item, Sample) and isinstance(last, Sample) and len(kept) % 2:
                both = {**last.values, **item.values}
                values = {name: max(last.values.get(name, 0), item.values.get(name, 0)) for name in both}
                kept[-1] = item._replace(values=values)
                kept.append(Sample(item.moment, {}))
            else:
                kept.append(item)
        self.items = [item for item in kept if not isinstance(item, Sample) or item.values]
        self.n_samples = sum(isinstance(item, Sample) for item in self.items)


def _goes_on(last: Sample, values: Mapping[str, int], moment: LogMoment, pid: int) -> bool:
    """Return whether a line says more of the moment of the line before, as the rows of a table do."""
    if last.values.keys() & values.keys() or last.pid != pid:
        return False
    return moment.step in (last.moment.step, UNKNOWN) or last.moment.step == UNKNOWN


def _later(one: LogMoment, other: LogMoment) -> LogMoment:
    return LogMoment(other.time_ns or one.time_ns, other.step if other.step >= 0 else one.step)


class Figures:
    """The places of a file."""

    def __init__(self) -> None:
        self.places: dict[tuple[int, int], PlaceFigures] = {}

    def at(self, rank: int, device: int) -> PlaceFigures:
        """Return the place of that rank and device."""
        key = (rank, max(device, 0))
        if key not in self.places:
            self.places[key] = PlaceFigures(*key)
        return self.places[key]

    def recordings(self) -> tuple[Recording, ...]:
        """Return one recording for each rank and device."""
        for place in self.places.values():
            place.settle()
        return tuple(_recording(place) for _, place in sorted(self.places.items()) if place.items)

    def __bool__(self) -> bool:
        return any(place.items or place.processes for place in self.places.values())


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
    return Recording(
        source=_source(place, messages, tables),
        process=Process(rank=place.rank, pid=_pid(place), command=place.command),
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


def _pid(place: PlaceFigures) -> int:
    return next((item.pid for item in reversed(place.items) if isinstance(item, Sample) and item.pid), 0)


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
    found = {"allocated": known.get("allocated", UNKNOWN), "reserved": _said_reserved(row)}
    found |= {"device_total": known.get("capacity", UNKNOWN), "process_used": known.get("process", UNKNOWN)}
    if known.get("capacity", UNKNOWN) >= known.get("free", math.inf):
        found["device_used"] = known["capacity"] - known["free"]
    return found


def _said_reserved(message: Message) -> int:
    """Return the bytes reserved where the message says so: on Apple's chips they are what is allocated."""
    says = message.kind == "mps" or {"reserved", "unallocated"} & message.known.keys()
    return message.reserved if says else UNKNOWN


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
    if "spared" in values and total >= values["spared"]:
        values["allocated_peak"] = total - values["spared"]
    start = values.get("start", 0)
    if "grown" in values or "above" in values:
        values["allocated_peak"] = start + values.get("grown", 0) + values.get("above", 0)
    return values


def _marks(rows: list[tuple[Sample | Message, int]]) -> Marks:
    free = [(row.known["free"], at) for row, at in rows if isinstance(row, Message) and "free" in row.known]
    return Marks.of(
        kind=[MarkKind.OOM] * len(free), value=[n_bytes for n_bytes, _ in free], event=[at for _, at in free]
    )


def _runs(samples: list[Sample]) -> list[list[int]]:
    """Return the rows of each run in the file: one begins where the steps go back."""
    runs: list[list[int]] = [[]]
    last = UNKNOWN
    for row, sample in enumerate(samples):
        step = sample.moment.step
        if 0 <= step < last:
            runs.append([])
        last = step if step >= 0 else last
        runs[-1].append(row)
    return runs


def _steps(samples: list[Sample], times: list[int]) -> Steps:
    ends: dict[int, int] = {}
    for row in _runs(samples)[-1]:
        if samples[row].moment.step >= 0:
            ends[samples[row].moment.step] = times[row]
    if len(set(ends.values())) < len(ends):
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
    if len(_runs(samples)) > 1:
        yield _several(samples)
    yield from _of_messages(messages)
    yield from tables[-1].notes if tables else ()
    for (pid, name), n_bytes in sorted(place.others.items(), key=lambda each: -each[1])[:_MOST_NOTED]:
        text = f"process {pid} ({name[:100]}) used up to {format_bytes(n_bytes)} of the same device"
        yield Note(NoteCode.OTHER_PROCESS, text, n_bytes)
    if len(samples) > 1 and times[-1] < len(times):
        yield _NO_CLOCK
    if messages:
        yield _MOMENTS_OF_MESSAGE
    elif samples and not tables:
        yield _DRIVER_ONLY if _source(place, messages, tables) == "telemetry" else _MOMENTS_OF_LOG
    if messages or tables:
        yield NO_LAYOUT


def _series_note(series: _LoggedSeries, most: int) -> Note:
    what = _WORDS.get(series.column, _PARTIAL.get(series.column, ""))
    return Note(
        NoteCode.SERIES, f"{series.name} of {series.origin}: {what}; highest {format_bytes(most)}", most
    )


_PARTIAL = {
    "start": "allocated before that stage",
    "grown": "what stayed allocated of that stage",
    "above": "what was allocated above that for a while; with what stayed and was there before, the peak",
    "spared": "the device's total less what torch had allocated at most",
}
"""What columns are that only together give a counter."""


def _several(samples: list[Sample]) -> Note:
    runs = _runs(samples)
    most = [max((max(samples[row].values.values(), default=0) for row in rows), default=0) for rows in runs]
    shown = ", ".join(format_bytes(n_bytes) for n_bytes in most[:8]) + (", …" if len(most) > 8 else "")
    text = f"the steps begin again: {len(runs)} runs or restarts are in it, whose highest figures are {shown}"
    return Note(NoteCode.SEVERAL_RUNS, text, len(runs))


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
    n_runs = len({message.pid for message in messages} - {0})
    if n_runs > 1:
        text = f"the messages are of {n_runs} processes: each is a run of its own, and one follows another"
        yield Note(NoteCode.SEVERAL_RUNS, text, n_runs)


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
