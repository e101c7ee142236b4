"""Snapshots of torch's CUDA allocator: what ``torch.cuda.memory._dump_snapshot`` writes, any version.

The file is a pickle of any protocol, gzipped or not, or the same as JSON. The bare list of segments that
``torch.cuda.memory_snapshot()`` returns is read too.
"""

import json
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from vramscope.allocator.replay import reconstruct
from vramscope.allocator.torch_history import DeviceHistory, histories
from vramscope.allocator.torch_history.pinned import host_events, host_history
from vramscope.errors import FormatError
from vramscope.formats import Format, Watch
from vramscope.formats._fast_snapshot import packed
from vramscope.formats._fast_snapshot.events import snapshot_of
from vramscope.formats._fast_snapshot.opcode_blocks import Irregular
from vramscope.formats._file import UTF8_MARK, beginning, contents, file_run, naming, opened
from vramscope.formats._pickle import loads
from vramscope.malloc import collector_off
from vramscope.model.codes import NoteCode
from vramscope.model.device import Device, Process
from vramscope.model.marks import Note
from vramscope.model.recording import Recording, Run
from vramscope.model.snapshot import Snapshot
from vramscope.model.stacks import StackBuilder, Stacks
from vramscope.model.trace import Action, Trace
from vramscope.steps import resolve
from vramscope.units import format_bytes, format_count

_SUFFIXES = (".pickle", ".pkl", ".pickle.gz", ".pkl.gz")
_JSON_KEYS = (b'"device_traces"', b'"segments"', b'"total_size"')


def sniff(head: bytes, path: Path) -> bool:
    """Return whether it is a pickle, or JSON with the keys of a snapshot.

    Files are often misnamed, so the content decides.
    """
    start = beginning(head)
    if start[:1] == b"\x80" and b"\x02" <= start[1:2] <= b"\x05":
        return start[2:3] != b"\x8a"  # a number comes first in what torch.save wrote before 1.6
    if start[:1] in (b"(", b"]", b"}", b"c") and path.name.lower().endswith(_SUFFIXES):
        return start[:2].isascii()
    return _is_json(start) and any(key in start for key in _JSON_KEYS)


def _is_json(data: bytes) -> bool:
    """Return whether *data* is JSON, with or without a byte order mark."""
    return data.removeprefix(UTF8_MARK).lstrip()[:1] in (b"{", b"[")


def read(path: Path, watch: Watch | None = None) -> Run:
    """Read one recording per device that held memory or had an event; *watch* is called meanwhile."""
    with collector_off():
        with suppress(Irregular, FormatError):
            return read_packed(path, watch)
        return read_whole(path)


def read_packed(path: Path, watch: Watch | None = None) -> Run:
    """Read a snapshot by runs of events without an object for each: 0.6 s and 100 MB per million events.

    Raises Irregular if the file is not as torch writes it; ``read_whole`` reports what is wrong.
    """
    with opened(path) as file:
        found = [packed(file, watch=watch, n_bytes=path.stat().st_size)]
    n_trailing = found[0].n_trailing
    # Passed on and not kept, so that the snapshot is freed while the run is built from it.
    return run_of(snapshot_of(found.pop()), path, n_trailing)


def read_whole(path: Path) -> Run:
    """Read a snapshot by building every dict; accepts everything that ``sniff`` accepts."""
    snapshot, n_trailing = _parsed(path, contents(path))
    with naming(path):
        return run_of(snapshot, path, n_trailing)


def run_of(snapshot: Any, path: Path, n_trailing: int = 0) -> Run:
    """Return the run of a snapshot (plain data); *path* names it."""
    builder = StackBuilder()
    found, notes = histories(snapshot, builder)
    if n_trailing:
        notes = [
            *notes,
            Note(NoteCode.TRAILING, f"{n_trailing} bytes after the end were not read", n_trailing),
        ]
    history = None
    if type(snapshot) is dict and (snapshot.get("host_traces") or snapshot.get("host_segments")):
        history = host_history(host_events(snapshot), snapshot.get("host_segments", []), builder)
    given = snapshot.get("allocator_settings", {}) if type(snapshot) is dict else {}
    process = Process(
        allocator={str(key): str(value) for key, value in given.items() if not isinstance(value, dict | list)}
    )
    del snapshot
    stacks = builder.build()
    recordings = tuple(_recording(history, process, stacks) for history in found)
    if history is not None:
        pinned = _recording(history, process, stacks)
        recordings = (replace(recordings[0], pinned=pinned), *recordings[1:])
    return file_run(path, re.sub(r"\.(gz|pickle|pkl|json)\b", "", path.name), recordings, notes)


def _parsed(path: Path, data: bytes) -> tuple[Any, int]:
    try:
        if _is_json(data):
            return json.loads(data), 0
        with naming(path):
            return loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: damaged JSON ({str(error)[:200]}): copy it or dump it again") from None


def _recording(history: DeviceHistory, process: Process, stacks: Stacks) -> Recording:
    rebuilt = reconstruct(history.trace, history.final, history.settings, pools=history.pools)
    trace = rebuilt.trace
    end_ns = int(trace.time_ns[-1]) if len(trace) else 0
    steps, phases = resolve(history.marks, len(trace), end_ns)
    return Recording(
        source="snapshot",
        process=process,
        device=Device(index=history.device),
        trace=trace,
        stacks=stacks,
        initial=rebuilt.initial,
        final=history.final,
        pools=history.pools,
        marks=history.marks,
        steps=steps,
        phases=phases,
        notes=(*_late(rebuilt.initial, trace), *history.notes, *rebuilt.notes),
    )


def _late(initial: Snapshot, trace: Trace) -> list[Note]:
    """Return a note on memory from before the first event; without any event, that is all memory."""
    blocks = initial.blocks
    in_use = blocks.rows(blocks.in_use)
    if not len(in_use) or (trace.action == Action.SNAPSHOT).all():
        return []
    n_bytes = int(in_use.size.sum())
    text = (
        f"recording started late: {format_bytes(n_bytes)} in {format_count(len(in_use), 'block')} "
        "were already there; when, and some of them by whom, is not known"
    )
    return [Note(NoteCode.STARTS_LATE, text, n_bytes)]


FORMAT = Format("torch snapshot", sniff, read, read_watched=read)
