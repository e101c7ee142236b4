"""The contents of a run or file."""

from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from vramscope.commands import described
from vramscope.commands._crew import waiting
from vramscope.commands._document import Block, Grid, Heading, Text, print_answer
from vramscope.units import format_bytes, format_duration

if TYPE_CHECKING:
    from vramscope.model.recording import Recording


def run(args: Namespace) -> int:
    """Print the contents of a run; return the exit code."""
    from vramscope.loading import load

    with waiting(f"reading {args.path}"):
        loaded = load(args.path)
    # The contents for JSON; None for values that are not known.
    contents = {
        "schema": 1,
        "name": loaded.name,
        "path": loaded.path,
        "outcome": loaded.outcome.value,
        "error": loaded.error or None,
        "started_ns": loaded.started_ns or None,
        "ended_ns": loaded.ended_ns or None,
        "notes": [_note(note) for note in loaded.notes],
        "recordings": [_recording(recording) for recording in loaded.recordings],
    }
    return print_answer(args, lambda: contents, _page(contents))


def _recording(recording: "Recording") -> dict[str, Any]:
    process, device, trace = recording.process, recording.device, recording.trace
    return {
        "rank": process.rank,
        "world_size": process.world_size,
        "device": device.index,
        "device_kind": device.kind,
        "device_name": device.name or None,
        "capacity_bytes": device.total_bytes or None,
        "source": recording.source,
        "torch": process.torch or None,
        "python": process.python or None,
        "driver": process.driver or None,
        "host": process.host or None,
        "pid": process.pid or None,
        "command": process.command or None,
        "allocator": dict(process.allocator),
        "events": len(trace),
        "events_by_action": _by_action(recording),
        "duration_ns": int(trace.time_ns[-1] - trace.time_ns[0]) if trace.has_clock else None,
        "streams": len(set(trace.stream.tolist())),
        "pools": len(recording.pools),
        "stacks": len(set(trace.stack_id.tolist()) - {0}),
        "steps": len(recording.steps),
        "phases": len(recording.phases),
        "marks": len(recording.marks),
        "samples": len(recording.counters),
        "labels": len(recording.labels),
        "segments_before": len(recording.initial.segments),
        "blocks_before": len(recording.initial.blocks),
        "notes": [_note(note) for note in recording.notes],
    }


def _by_action(recording: "Recording") -> dict[str, int]:
    import numpy as np

    from vramscope.model.trace import Action

    counts = np.bincount(recording.trace.action, minlength=len(Action)).tolist()
    return {action.name.lower(): counts[action] for action in Action if counts[action]}


def _note(note: Any) -> dict[str, Any]:
    return {"code": note.code, "text": note.text, "value": note.value}


def _page(contents: dict[str, Any]) -> Iterator[Block]:
    yield Heading(f"{contents['name']}: {contents['outcome']}", level=1)
    if contents["error"]:
        yield Text(contents["error"], "error")
    for note in contents["notes"]:
        yield Text(note["text"], "note")
    for recording in contents["recordings"]:
        yield from _recording_page(recording)


def _recording_page(recording: dict[str, Any]) -> Iterator[Block]:
    yield Heading(f"rank {recording['rank']}, device {recording['device']} ({recording['source']})")
    for note in recording["notes"]:
        yield Text(note["text"], "note")
    words = {key: _word(key, value) for key, value in recording.items() if key != "notes"}
    titles = (key.removesuffix("_ns").removesuffix("_bytes").replace("_", " ") for key in words)
    rows = zip(titles, words.values(), strict=True)
    yield Grid(("", ""), tuple(row for row in rows if row[1]), "ll")


def _word(key: str, value: Any) -> str:
    """Return a value as text; empty if it is not known."""
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_word('', n)}" for name, n in value.items())
    if key == "capacity_bytes":
        return format_bytes(value)
    if key == "duration_ns":
        return format_duration(value)
    return f"{value:,}" if isinstance(value, int) and key != "pid" else str(value)


COMMAND = described("info", run)
