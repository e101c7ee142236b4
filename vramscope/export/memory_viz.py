"""Export as the snapshot that torch writes, for torch's own viewer (``pytorch.org/memory_viz``).

The file has the form of ``torch.cuda.memory._dump_snapshot`` in torch 2.13. Steps, phases, categories and
notes have no place in it. Recorded memory from before the first event is in the final state only, where
torch's viewer looks for it.
"""

import pickle
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from vramscope.allocator.state_index import StateIndex
from vramscope.export import Export
from vramscope.model.marks import MarkKind
from vramscope.model.recording import Recording, Run
from vramscope.model.snapshot import BlockState, Snapshot
from vramscope.model.stacks import Stacks
from vramscope.model.trace import Action

_STATES = {
    BlockState.ALLOCATED: "active_allocated",
    BlockState.PENDING_FREE: "active_pending_free",
    BlockState.INACTIVE: "inactive",
}
_CONTEXT = {"compile_context": "N/A", "user_metadata": ""}
"""Keys that torch 2.13 writes for each event and block; the values are those of eager code."""


def write(run: Run, path: Path) -> list[Path]:
    """Write one pickle per process: *path* itself, or below it ``rank<r>.pickle`` where there are several."""
    processes = [list(group) for _, group in groupby(run.recordings, lambda each: each.process.rank)]
    if len(processes) == 1:
        files = [path]
    else:
        files = [path / f"rank{recordings[0].process.rank}.pickle" for recordings in processes]
    for file, recordings in zip(files, processes, strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as out:
            pickle.dump(snapshot(recordings), out, protocol=4)
    return files


def snapshot(recordings: Sequence[Recording]) -> dict[str, Any]:
    """Return the recordings of one process as torch's dict; its devices are at their own indices."""
    n_devices = 1 + max(recording.device.index for recording in recordings)
    traces: list[list[dict[str, Any]]] = [[] for _ in range(n_devices)]
    segments: list[dict[str, Any]] = []
    for recording in recordings:
        frames = _Frames(recording.stacks)
        traces[recording.device.index] = list(_events(recording, frames))
        segments += _segments(recording, frames)
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "", **recordings[0].process.allocator}
    return {
        "segments": segments,
        "device_traces": traces,
        "allocator_settings": settings,
        "external_annotations": [],
    }


class _Frames:
    """Lists of frames by stack_id, each made once, so that the pickle stores each once."""

    def __init__(self, stacks: Stacks) -> None:
        self._stacks = stacks
        self._made: dict[int, list[dict[str, Any]]] = {}

    def of(self, stack_id: int) -> list[dict[str, Any]]:
        if stack_id not in self._made:
            self._made[stack_id] = [
                {"name": frame.function, "filename": frame.file, "line": frame.line}
                for frame in self._stacks.frames(stack_id)
            ]
        return self._made[stack_id]


def _events(recording: Recording, frames: _Frames) -> Iterable[dict[str, Any]]:
    trace, pools = recording.trace, recording.pools
    names = {int(action): action.name.lower() for action in Action}
    columns = (trace.action, trace.address, trace.size, trace.stream, trace.time_ns // 1000, trace.pool)
    rows = zip(*(column.tolist() for column in (*columns, trace.stack_id)), strict=True)
    marks = recording.marks
    is_oom = marks.kind == MarkKind.OOM
    device_free = dict(zip((marks.event[is_oom] - 1).tolist(), marks.value[is_oom].tolist(), strict=True))
    for event, (action, address, size, stream, time_us, pool, stack_id) in enumerate(rows):
        place = {"device_free": device_free.get(event, 0)} if action == Action.OOM else {"addr": address}
        yield {
            "action": names[action],
            **place,
            "size": size,
            "stream": stream,
            "time_us": time_us,
            "frames": frames.of(stack_id),
            "segment_pool_id": pools[pool],
            **_CONTEXT,
        }


def _segments(recording: Recording, frames: _Frames) -> Iterable[dict[str, Any]]:
    final = recording.final
    if final is None:
        final = StateIndex(recording.trace, recording.initial).at(len(recording.trace))
    segments, blocks = final.segments, _blocks(final, frames)
    for row, values in enumerate(zip(*(column.tolist() for _, column in segments.columns()), strict=True)):
        address, size, stream, pool, is_large, is_expandable, stack_id = values
        held = blocks[row]
        yield {
            "device": recording.device.index,
            "address": address,
            "total_size": size,
            "allocated_size": _sum(held, "size", "active_allocated"),
            "active_size": _sum(held, "size", "active_allocated", "active_pending_free"),
            "requested_size": _sum(held, "requested_size", "active_allocated", "active_pending_free"),
            "stream": stream,
            "segment_type": "large" if is_large else "small",
            "segment_pool_id": recording.pools[pool],
            "is_expandable": is_expandable,
            "frames": frames.of(stack_id),
            "blocks": held,
        }


def _sum(blocks: Iterable[dict[str, Any]], key: str, *states: str) -> int:
    return sum(block[key] for block in blocks if block["state"] in states)


def _blocks(state: Snapshot, frames: _Frames) -> list[list[dict[str, Any]]]:
    blocks = state.blocks
    made: list[list[dict[str, Any]]] = [[] for _ in range(len(state.segments))]
    for row in np.argsort(blocks.address, kind="stable").tolist():
        kind = BlockState(int(blocks.state[row]))
        made[int(blocks.segment[row])].append(
            {
                "address": int(blocks.address[row]),
                "size": int(blocks.size[row]),
                "requested_size": int(blocks.requested_size[row]),
                "state": _STATES[kind],
                "frames": frames.of(int(blocks.stack_id[row])),
                **_CONTEXT,
            }
        )
    return made


EXPORT = Export("memory_viz", "torch's own snapshot, for its viewer", write)
