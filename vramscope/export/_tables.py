"""Every table of a recording as Arrow, with words for codes and text for stacks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from vramscope.analysis.lifetimes import lifetimes
from vramscope.model.marks import Category, MarkKind, Phase
from vramscope.model.recording import Recording, Run
from vramscope.model.snapshot import BlockState, Snapshot
from vramscope.model.stacks import Stacks
from vramscope.model.table import Array, Table
from vramscope.model.trace import Action

_WORDS: dict[str, type[IntEnum]] = {
    "action": Action,
    "category": Category,
    "kind": MarkKind,
    "phase": Phase,
    "state": BlockState,
}


def write_tables(run: Run, directory: Path, suffix: str, write: Callable[[Any, Path], None]) -> list[Path]:
    """Write each table of each recording to ``rank<r>-device<d>/<table><suffix>``; return the files."""
    files = []
    for recording in run.recordings:
        home = directory / f"rank{recording.process.rank}-device{recording.device.index}"
        home.mkdir(parents=True, exist_ok=True)
        for name, table in tables(recording):
            files.append(home / f"{name}{suffix}")
            write(table, files[-1])
    return files


def tables(recording: Recording) -> Iterator[tuple[str, pa.Table]]:
    """Yield the name and the Arrow table of everything in *recording*, with allocations and frees paired.

    Codes become their names (``ALLOC``), name indices become the names. No column is left out. Allocations,
    segments and blocks have the ``stack`` as text next to the ``stack_id``. Events do not, as each allocation
    would repeat it three times: a million events made 6 GB of CSV.
    """
    stacks = recording.stacks
    yield "recording", _about(recording)
    yield "events", _arrow(recording.trace)
    yield "allocations", _with_stacks(lifetimes(recording), stacks)
    for name in ("steps", "phases", "marks", "labels", "holders"):
        yield name, _arrow(getattr(recording, name))
    yield "samples", _arrow(recording.counters)
    yield from _state("initial", recording.initial, stacks)
    if recording.final is not None:
        yield from _state("final", recording.final, stacks)
    yield "stacks", _frames(stacks)
    yield (
        "pools",
        pa.table(
            {
                "pool": pa.array(range(len(recording.pools)), pa.int32()),
                "owner": pa.array([owner for owner, _ in recording.pools], pa.int64()),
                "id": pa.array([id_ for _, id_ in recording.pools], pa.int64()),
            }
        ),
    )
    yield (
        "notes",
        pa.Table.from_pylist(
            [asdict(note) for note in recording.notes],
            pa.schema({"code": pa.string(), "text": pa.string(), "value": pa.int64()}),
        ),
    )


def _about(recording: Recording) -> pa.Table:
    process = asdict(recording.process)
    settings, mesh = process.pop("allocator"), process.pop("mesh")
    device = {f"device_{name}": value for name, value in asdict(recording.device).items()}
    row = {
        "source": recording.source,
        **process,
        **device,
        "allocator": "; ".join(map("=".join, settings.items())),
        "mesh": "; ".join(f"{name}={place}" for name, place in mesh.items()),
    }
    return pa.table({name: [value] for name, value in row.items()})


def _state(when: str, state: Snapshot, stacks: Stacks) -> Iterator[tuple[str, pa.Table]]:
    yield f"{when}_segments", _with_stacks(state.segments, stacks)
    yield f"{when}_blocks", _with_stacks(state.blocks, stacks)


def _frames(stacks: Stacks) -> pa.Table:
    columns = {name: pa.array(column) for name, column in stacks.columns()}
    for name in ("function", "file"):
        columns[name] = _words(getattr(stacks, name), stacks.strings)
    return pa.table({"stack_id": pa.array(range(len(stacks)), pa.int32()), **columns})


def _with_stacks(table: Any, stacks: Stacks) -> pa.Table:
    return _arrow(table).append_column("stack", _stack_texts(table.stack_id, stacks))


def _arrow(table: Table) -> pa.Table:
    columns: dict[str, Any] = {}
    for name, values in table.columns():
        if name in table.TEXT_COLUMNS and hasattr(table, "names"):
            columns[name] = _words(values, table.names)
        elif name in _WORDS:
            # Codes as their names; a code that this version does not know stays a number.
            known = {int(member): member.name for member in _WORDS[name]}
            size = int(values.max(initial=0)) + 1
            columns[name] = _words(values, [known.get(code, str(code)) for code in range(size)])
        else:
            columns[name] = pa.array(values)
    return pa.table(columns)


def _stack_texts(stack_ids: Array, stacks: Stacks) -> Any:
    # Only stacks in use: every prefix of a deep stack is a stack too, and all texts would take gigabytes.
    used, row = np.unique(stack_ids, return_inverse=True)
    return _words(
        row,
        [
            " ← ".join(f"{f.function} ({f.file}:{f.line})" for f in stacks.frames(stack_id))
            for stack_id in used.tolist()
        ],
    )


def _words(index: Array, words: Sequence[str]) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(index.astype("i4")), pa.array(words, pa.string()))
