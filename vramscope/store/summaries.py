"""The file ``summary.json`` of a rank: its figures, so that a comparison of many ranks reads no events."""

import json
import os
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from vramscope._version import __version__
from vramscope.model.device import Device, Process
from vramscope.model.finding import Finding
from vramscope.model.marks import Note
from vramscope.model.rank_summary import DeviceSummary, Failure, LineBytes, PeakPlace, RankSummary, StepRows
from vramscope.model.recording import Outcome
from vramscope.model.stacks import Frame
from vramscope.model.table import Array
from vramscope.store.directory import MANIFEST
from vramscope.store.read import side_file
from vramscope.store.write.own_file import OwnFile, replace_file

SUMMARY_FILE = "summary.json"
LARGEST_BYTES = 200_000
"""The size limit of the file: reading 10,000 of them must take seconds."""
_MOST_BYTES = 4 * LARGEST_BYTES
"""The size above which a file is no summary, whoever wrote it."""
_SCHEMA = {"major": 1, "minor": 1}
_VALUE = json.JSONEncoder().encode
_FEWEST_LINES = 5
_CHECKSUM = "crc32"
_PACKED = ("first", "unit", "width", "changes")
"""The parts of a column of steps; ``width`` is the bytes of each change, which counts in ``unit``."""
_WIDTHS = (1, 2, 4, 8)
# Asking a dataclass for its fields takes as long as parsing a row: 10,000 files have 100,000 of them.
_PROCESS, _DEVICE, _FAILURE, _FINDING = (
    tuple(field.name for field in fields(shape)) for shape in (Process, Device, Failure, Finding)
)


@dataclass(frozen=True, slots=True)
class StoredSummary:
    """A summary, and what it was made from."""

    summary: RankSummary
    trace: str = ""
    """The id of the trace; empty for a trace older than ids."""
    is_final: bool = True
    """Whether it covers everything; false for one written while the process runs."""
    events_bytes: int = 0
    """The size of all files of events when it was made: a trace that has grown since needs another one."""
    written_ns: int = 0


def state_of_files(rank: Path) -> list[tuple[str, int, int]]:
    """What changes when the summary of a rank is written, or the rank ends."""
    found = []
    for name in (SUMMARY_FILE, MANIFEST):
        with suppress(OSError):
            status = (rank / name).stat()
            found.append((name, status.st_mtime_ns, status.st_size))
    return found


def events_bytes(rank: Path) -> int:
    """The size of the files of events of a rank, those of all parts together."""
    total = 0
    homes = [rank]
    while homes:
        try:
            entries = list(os.scandir(homes.pop()))
        except OSError:
            continue
        for entry in entries:
            if entry.name.startswith("events-"):
                with suppress(OSError):  # a compaction deletes parts meanwhile
                    total += entry.stat().st_size
            elif entry.name.startswith("part") and entry.is_dir():
                homes.append(Path(entry.path))
    return total


def write_summary(path: Path, stored: StoredSummary, own: OwnFile | None = None) -> int:
    """Replace the file in one step, so that a reader finds a whole one or none.

    Where *own* is that file, it must be the last version of it. Returns its size in bytes, at most
    ``LARGEST_BYTES``. Raises OSError if it cannot be written; it is then unchanged.
    """
    data = _fitted(stored)
    replace_file(path, data) if own is None else own.replace(data)
    return len(data)


def read_summary(path: Path) -> StoredSummary | None:
    """The summary in a file.

    None if there is no file, or if it is damaged or of a newer version: a reader then makes one.
    """
    try:
        return parse_summary(side_file.content(path, _MOST_BYTES))
    except OSError:
        return None


def parse_summary(data: bytes) -> StoredSummary | None:
    """The summary in the bytes of a file; None if they are damaged or of a newer version."""
    # The line with the checksum comes last, and covers all bytes before it.
    body, _, tail = data.rpartition(b',\n "crc32": ')
    try:
        if int(tail.rstrip(b"\n}")) != zlib.crc32(body):
            return None
        document = side_file.parsed(data)
        if document["format"] != "vramscope summary" or document["schema"]["major"] != _SCHEMA["major"]:
            return None
        return side_file.checked(_from_json(document), StoredSummary)
    except side_file.DAMAGE:
        return None


def _fitted(stored: StoredSummary) -> bytes:
    """The bytes of the file, with fewer rows where it would be too large."""
    n_lines, size = 1 << 30, 1
    while True:
        devices = tuple(_reduced(device, n_lines, size) for device in stored.summary.devices)
        data = _text(replace(stored, summary=replace(stored.summary, devices=devices)))
        if len(data) <= LARGEST_BYTES or n_lines < _FEWEST_LINES:
            break
        n_lines = min(n_lines, max((len(device.lines) for device in stored.summary.devices), default=0)) // 2
        size *= 2
    if len(data) > LARGEST_BYTES:
        raise OSError(f"a summary of {len(data):,} bytes is too large")
    return data


def _reduced(device: DeviceSummary, n_lines: int, group: int) -> DeviceSummary:
    """The same device with fewer lines and steps; *group* counts in groups of the present rows."""
    if len(device.lines) <= n_lines and group == 1:
        return device
    present = int(device.steps.n_steps.max(initial=1))
    failure = device.failure
    return replace(
        device,
        lines=device.lines[:n_lines],
        other_bytes=device.other_bytes + sum(line.n_bytes for line in device.lines[n_lines:]),
        retained=device.retained[:n_lines],
        steps=device.steps.grouped(present * group),
        failure=None if failure is None else replace(failure, lines=failure.lines[:n_lines]),
    )


def _text(stored: StoredSummary) -> bytes:
    frames: dict[Frame, int] = {}
    summary = stored.summary
    devices = [_device_json(device, frames) for device in summary.devices]
    process = {name: getattr(summary.process, name) for name in _PROCESS}
    document = {
        "format": "vramscope summary",
        "schema": _SCHEMA,
        "writer": f"vramscope {__version__}",
        "trace": stored.trace,
        "is_final": stored.is_final,
        "events_bytes": stored.events_bytes,
        "written_ns": stored.written_ns,
        "process": process
        | {"allocator": dict(summary.process.allocator), "mesh": dict(summary.process.mesh)},
        "outcome": summary.outcome.value,
        "error": summary.error,
        "started_ns": summary.started_ns,
        "ended_ns": summary.ended_ns,
        "frames": [list(frame) for frame in frames],
        "devices": devices,
    }
    lines = (f"{_VALUE(name)}: {_VALUE(value)}" for name, value in document.items())
    body = ("{\n " + ",\n ".join(lines)).encode()
    return body + f',\n "{_CHECKSUM}": {zlib.crc32(body)}\n}}\n'.encode()


def _device_json(summary: DeviceSummary, frames: dict[Frame, int]) -> dict[str, Any]:
    failure, findings = summary.failure, summary.findings
    return {
        "device": asdict(summary.device),
        "source": summary.source,
        "events": summary.n_events,
        "is_exact": summary.is_exact,
        "end": dict(summary.end),
        "peak": {name: list(place) for name, place in summary.peak.items()},
        "lines": _lines_json(summary.lines, frames),
        "other_bytes": summary.other_bytes,
        "retained": _lines_json(summary.retained, frames),
        "steps": {name: _packed(column) for name, column in summary.steps.columns()},
        "phases": dict(summary.phases),
        "failed": summary.n_failed,
        "failure": failure and _failure_json(failure, frames),
        "samples": dict(summary.samples),
        "notes": [[note.code, note.text, note.value] for note in summary.notes],
        "findings": None if findings is None else [_finding_json(each) for each in findings],
    }


def _failure_json(failure: Failure, frames: dict[Frame, int]) -> dict[str, Any]:
    fields = {name: getattr(failure, name) for name in _FAILURE}
    return fields | {"lines": _lines_json(failure.lines, frames)}


def _finding_json(finding: Finding) -> dict[str, Any]:
    """The finding without its evidence, which only the whole recording explains."""
    values = ((name, getattr(finding, name)) for name in _FINDING if name != "evidence")
    return {name: str(value) if isinstance(value, str) else value for name, value in values}


def _lines_json(lines: Sequence[LineBytes], frames: dict[Frame, int]) -> list[list[Any]]:
    return [
        [
            line.n_bytes,
            line.n_blocks,
            [frames.setdefault(frame, len(frames)) for frame in line.frames],
            line.via,
            line.n_steps,
        ]
        for line in lines
    ]


def _from_json(document: Mapping[str, Any]) -> StoredSummary:
    frames = [Frame(*row) for row in document["frames"]]
    process = document["process"]
    known = {name: process[name] for name in _PROCESS if name in process}
    return StoredSummary(
        summary=RankSummary(
            process=Process(**known),
            outcome=Outcome(document["outcome"]),
            error=document["error"],
            started_ns=document["started_ns"],
            ended_ns=document["ended_ns"],
            devices=tuple(_device(row, frames) for row in document["devices"]),
        ),
        trace=document["trace"],
        is_final=document["is_final"],
        events_bytes=document["events_bytes"],
        written_ns=document["written_ns"],
    )


def _device(row: Mapping[str, Any], frames: Sequence[Frame]) -> DeviceSummary:
    failure = row["failure"]
    return DeviceSummary(
        device=Device(**{name: row["device"][name] for name in _DEVICE}),
        source=row["source"],
        n_events=row["events"],
        is_exact=row["is_exact"],
        end=row["end"],
        peak={name: PeakPlace(*place) for name, place in row["peak"].items()},
        lines=_lines(row["lines"], frames),
        other_bytes=row["other_bytes"],
        retained=_lines(row["retained"], frames),
        steps=StepRows(**{name: _unpacked(row["steps"][name]) for name in StepRows.DTYPES}),
        phases=row["phases"],
        n_failed=row["failed"],
        failure=None
        if failure is None
        else Failure(
            **{name: failure[name] for name in _FAILURE if name != "lines"},
            lines=_lines(failure["lines"], frames),
        ),
        samples=row["samples"],
        notes=tuple(Note(*note) for note in row["notes"]),
        findings=None
        if row.get("findings") is None
        else tuple(
            Finding(**{name: each[name] for name in _FINDING if name in each}) for each in row["findings"]
        ),
    )


def _packed(column: Array) -> list[Any]:
    """The first number of a column, and the differences of the others as bytes in base64.

    As JSON numbers, 1,000 steps take 0.7 ms to parse and 52 kB; in this form 0.05 ms and 20 kB.
    """
    if not len(column):
        return []
    change = np.diff(column)
    unit = int(np.gcd.reduce(change)) or 1 if len(change) else 1
    change //= unit
    width = next(size for size in _WIDTHS if (change == change.astype(f"<i{size}")).all())
    return [int(column[0]), unit, width, b64encode(change.astype(f"<i{width}").tobytes()).decode()]


def _unpacked(stored: Sequence[Any]) -> Array:
    if len(stored) != len(_PACKED) or not isinstance(stored[-1], str):
        return np.array(stored, "i8")  # of the first minor version, or empty
    first, unit, width, text = stored
    if width not in _WIDTHS:
        raise ValueError(f"no number has {width!r} bytes")
    change = np.frombuffer(b64decode(text, validate=True), f"<i{width}")
    found = np.empty(len(change) + 1, "i8")
    found[0], found[1:] = first, change
    found[1:] *= unit
    return np.cumsum(found, out=found)


def _lines(rows: Sequence[Any], frames: Sequence[Frame]) -> tuple[LineBytes, ...]:
    return tuple(
        LineBytes(n_bytes, n_blocks, tuple(frames[i] for i in ids), via, n_steps)
        for n_bytes, n_blocks, ids, via, n_steps in rows
    )
