"""Traces of ``torch.profiler`` with ``profile_memory=True``: Chrome's JSON with ``[memory]`` events.

Traces of 2021 contain only the bytes allocated or freed; newer ones also contain the address and both totals.
"""

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from vramscope.allocator.torch_history.annotations import PendingMark, annotation_marks, marks_of
from vramscope.allocator.torch_history.events import Rows
from vramscope.errors import FormatError
from vramscope.formats import Format
from vramscope.formats._file import beginning, file_run, naming, parsed
from vramscope.formats._totals_trace import (
    NO_LAYOUT,
    NO_LAYOUT_NOR_TOTALS,
    REAL_ADDRESSES,
    Pairs,
    TotalsTrace,
)
from vramscope.model.codes import NoteCode
from vramscope.model.device import Device, Process
from vramscope.model.marks import MarkKind, Marks, Note
from vramscope.model.recording import Recording, Run
from vramscope.model.trace import Trace
from vramscope.steps import resolve
from vramscope.units import format_bytes

_KEYS = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"')
_EVENT_KEYS = (b'"ph"', b'"ts"', b'"pid"', b'"name"')
_LIST = re.compile(rb"\s*\[\s*\{")
_MEMORY = "[memory]"
_STEP = "ProfilerStep#"
_REGIONS = (_STEP, "Optimizer.step#", "Optimizer.zero_grad#", "enumerate(DataLoader)#")
_CPU = 0
_KINDS = {_CPU: "cpu", 1: "cuda", 6: "hip", 9: "xla", 12: "xpu", 13: "mps"}
_MOST = 1 << 62
_OF_THE_HOST = Note(
    NoteCode.HOST_MEMORY, "this is the host's memory: the trace has no memory events of a GPU"
)
_NO_STACKS = Note(
    NoteCode.NO_STACKS,
    "a profiler's trace gives the bytes of blocks as the allocator rounded them, without the requested size "
    "and without the call stack",
)


class _Event(NamedTuple):
    time_ns: int
    n_bytes: int
    """The size in bytes; negative for a free."""
    address: int | None
    allocated: int | None
    reserved: int | None


def sniff(head: bytes, path: Path) -> bool:  # noqa: ARG001 (the interface of formats)
    """Return whether it is JSON with the first keys of a profiler trace, or a bare list of its events."""
    start = beginning(head)
    if _LIST.match(start):
        return all(key in start for key in _EVENT_KEYS)
    return start.lstrip()[:1] == b"{" and any(key in start for key in _KEYS)


def read(path: Path) -> Run:
    """Read one recording per device with memory events; the CPU's only if there is no other."""
    content = parsed(path, _kept)
    if type(content) is list:
        content = {"traceEvents": content}
    with naming(path):
        return _run(content, path)


def _kept(item: dict[str, Any]) -> Any:
    """Return the event if it is needed: most events of a trace are kernels and operators."""
    if "ph" not in item:
        return item
    name = item.get("name")
    if name == _MEMORY or (type(name) is str and name.startswith(_REGIONS) and item["ph"] == "X"):
        return item
    return None


def _run(content: Any, path: Path) -> Run:
    events = content.get("traceEvents") if type(content) is dict else None
    if type(events) is not list:
        raise FormatError("no list traceEvents: this is no trace of a profiler, or damaged")
    known = [event for event in events if type(event) is dict]
    by_device = _by_device([event for event in known if event.get("name") == _MEMORY], content)
    shown = [key for key in by_device if key[0] != _CPU] or list(by_device)
    left_out = [key for key in by_device if key not in shown]
    regions = [event for event in known if event.get("name") != _MEMORY]
    recordings = tuple(_recording(key, by_device[key], regions, content) for key in sorted(shown))
    name = path.name.removesuffix(".gz").removesuffix(".json").removesuffix(".pt.trace")
    return file_run(path, name, recordings, [_of_the_cpu(by_device[key]) for key in left_out])


def _of_the_cpu(events: Sequence[_Event]) -> Note:
    text = (
        f"{len(events):,} events of host memory are in the trace too: left out, there are those of a device"
    )
    return Note(NoteCode.CPU_LEFT_OUT, text, len(events))


def _by_device(rows: Sequence[Any], header: dict[str, Any]) -> dict[tuple[int, int], list[_Event]]:
    if not rows:
        raise FormatError(
            "no memory events in this trace: profile again with torch.profiler.profile(profile_memory=True)"
        )
    base_ns = _integer(header.get("baseTimeNanoseconds", 0), "baseTimeNanoseconds")
    found: dict[tuple[int, int], list[_Event]] = {}
    for at, row in enumerate(rows):
        given = row.get("args")
        if type(given) is not dict:
            _refuse(f"args of memory event {at}", given)
        device = tuple(_integer(given.get(f"Device {word}", 0), f"Device {word}") for word in ("Type", "Id"))
        found.setdefault((device[0], max(device[1], 0)), []).append(_event(row, given, base_ns))
    for events in found.values():
        events.sort(key=lambda event: event.time_ns)
    return found


def _event(row: dict[str, Any], given: dict[str, Any], base_ns: int) -> _Event:
    address, allocated, reserved = (
        _integer(given[key], key) if key in given else None
        for key in ("Addr", "Total Allocated", "Total Reserved")
    )
    return _Event(
        base_ns + _nanoseconds(row.get("ts")),
        _integer(given.get("Bytes"), "Bytes"),
        # As kineto writes it, an address above 2⁶³ is negative.
        None if address is None else address % REAL_ADDRESSES,
        allocated,
        None if reserved is None else max(reserved, 0),
    )


def _nanoseconds(ts: Any) -> int:
    if type(ts) not in (int, float) or not math.isfinite(ts) or not 0 <= ts * 1000 < _MOST:
        _refuse("ts", ts)
    return round(ts * 1000)


def _integer(value: Any, name: str) -> int:
    """Return *value* as an integer of 64 bits, signed or not."""
    number: int = value if type(value) is int else 4 * _MOST
    if not -2 * _MOST <= number < 4 * _MOST:
        _refuse(name, value)
    return number


def _refuse(name: str, value: Any) -> NoReturn:
    raise FormatError(f"{name} is {str(value)[:50]!r}, no number in range: the trace is damaged")


def _recording(
    device: tuple[int, int],
    events: Sequence[_Event],
    regions: Sequence[dict[str, Any]],
    header: dict[str, Any],
) -> Recording:
    kind, index = device
    builder, notes = _totals_trace(events)
    trace = builder.trace()
    marks = _marks(regions, header, trace)
    steps, phases = resolve(marks, len(trace), int(trace.time_ns[-1]))
    name, total_bytes = _properties(header, index) if kind != _CPU else ("", 0)
    layout = NO_LAYOUT_NOR_TOTALS if events[0].allocated is None else NO_LAYOUT
    job = header.get("distributedInfo")
    rank, size = (job.get("rank"), job.get("world_size")) if type(job) is dict else (0, 1)
    return Recording(
        source="snapshot",
        process=Process(rank=rank if type(rank) is int else 0, world_size=size if type(size) is int else 1),
        device=Device(index, _KINDS.get(kind, f"type {kind}"), name, total_bytes),
        trace=trace,
        initial=builder.initial(),
        marks=marks,
        steps=steps,
        phases=phases,
        notes=(*([_OF_THE_HOST] if kind == _CPU else ()), *notes, _NO_STACKS, layout),
    )


def _totals_trace(events: Sequence[_Event]) -> tuple[TotalsTrace, list[Note]]:
    """Build a trace from the events of one device.

    Memory from before the trace appears in the totals and in frees without an allocation.
    """
    first = events[0]
    builder = TotalsTrace(first.reserved or 0)
    pairs = Pairs(builder)
    for event in events:
        if event.reserved is not None:
            builder.reserve(event.reserved, event.time_ns)
        size = abs(event.n_bytes)
        known_as = size if event.address is None else event.address
        if size:
            move = pairs.begin if event.n_bytes > 0 else pairs.end
            move(known_as, size, event.time_ns, event.address)
    notes = [_no_totals(first)] if first.allocated is None else _contradictions(events)
    if first.allocated is not None:
        rest = first.allocated - first.n_bytes - pairs.predating_bytes
        if rest > 0:
            pairs.add_initial_block(rest)
    if pairs.predating_bytes:
        notes.insert(0, _late(pairs.predating_bytes))
    return builder, notes


def _late(n_bytes: int) -> Note:
    text = f"recording started late: {format_bytes(n_bytes)} were already allocated, by whom is not known"
    return Note(NoteCode.STARTS_LATE, text, n_bytes)


def _no_totals(first: _Event) -> Note:
    addresses = " and no addresses: frees are paired with allocations of the same size" * (
        first.address is None
    )
    return Note(
        NoteCode.NO_TOTALS,
        f"this trace has no totals{addresses}; what was there before it and is never freed in it is not "
        "counted, and reserved memory is not known",
    )


def _contradictions(events: Sequence[_Event]) -> list[Note]:
    """Return a note if a total is not the sum of the one before it and the event: events are missing."""
    pairs = pairwise(events)
    wrong = sum(
        None not in (one.allocated, other.allocated)
        and (one.allocated or 0) + other.n_bytes != other.allocated
        for one, other in pairs
    )
    if not wrong:
        return []
    text = f"{wrong} totals do not follow from the events before: some are missing, and levels may be off"
    return [Note(NoteCode.CONTRADICTION, text, wrong)]


def _marks(regions: Sequence[dict[str, Any]], header: dict[str, Any], trace: Trace) -> Marks:
    """Return marks for the steps and optimizers that the profiler recorded on the host."""
    base_ns = header.get("baseTimeNanoseconds", 0)
    steps: list[PendingMark] = []
    rows: list[dict[str, Any]] = []
    for region in regions:
        if str(region.get("cat", "")).startswith("gpu"):
            continue
        start = base_ns + _nanoseconds(region.get("ts"))
        end = start + _nanoseconds(region.get("dur", 0))
        if region["name"].startswith(_STEP):
            steps += _step(trace, start, end)
        else:
            # The region is widened to whole microseconds.
            for stage, time_us in (("START", start // 1000), ("END", -(-end // 1000))):
                rows.append({"name": region["name"], "stage": stage, "time_us": time_us})
    return marks_of([*steps, *annotation_marks(Rows(rows, "region {}".format), 0, trace)])


def _step(trace: Trace, start: int, end: int) -> list[PendingMark]:
    """Return the enter and exit marks of a step that the profiler recorded with its times."""
    first, last = np.searchsorted(trace.time_ns, start), np.searchsorted(trace.time_ns, end, side="right")
    return [
        PendingMark(MarkKind.ENTER, start, int(first), value=1),
        PendingMark(MarkKind.EXIT, end, int(last), value=1),
    ]


def _properties(header: dict[str, Any], index: int) -> tuple[str, int]:
    listed = header.get("deviceProperties")
    for known in listed if type(listed) is list else ():
        if type(known) is dict and known.get("id") == index:
            size = known.get("totalGlobalMem", 0)
            return str(known.get("name", ""))[:200], size if type(size) is int and 0 <= size < _MOST else 0
    return "", 0


FORMAT = Format("kineto", sniff, read)
