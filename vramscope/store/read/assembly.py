"""Builds a recording from the streams of one device, without rows that refer to missing ones."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import TypeVar

import numpy as np

from vramscope.model.codes import NoteCode
from vramscope.model.counters import UNKNOWN, Counters
from vramscope.model.device import Device
from vramscope.model.holders import PREFIX, Holders, holding_of
from vramscope.model.marks import Category, Labels, MarkKind, Marks, Note, Phase, Phases
from vramscope.model.past import Past
from vramscope.model.recording import Outcome, Recording
from vramscope.model.snapshot import Snapshot
from vramscope.model.stacks import Stacks
from vramscope.model.table import Table
from vramscope.model.trace import Action, Trace
from vramscope.steps import StepFinder
from vramscope.steps.innermost import of_several_threads, owners_of, train_at_once
from vramscope.steps.retained import retained_timeline
from vramscope.store.manifest import Cap, Manifest
from vramscope.store.read.streams import ColumnStream, DeviceStreams
from vramscope.units import format_bytes, format_duration, parse_bytes

OfBlocks = TypeVar("OfBlocks", Labels, Holders)
AnyTable = TypeVar("AnyTable", bound=Table)
Placed = TypeVar("Placed", Marks, Counters)


def recording(
    manifest: Manifest,
    device: int,
    streams: DeviceStreams,
    stacks: Stacks,
    ended: tuple[int, Outcome],
    finder: StepFinder,
) -> Recording:
    """Return the recording of one device; references to missing rows are neutralized and noted.

    *ended* says when and how the run ended, *finder* has seen its earlier marks.
    """
    pools = streams.pool_ids()
    first, end = streams.first_event, streams.first_event + len(streams)
    limits = {"stack_id": len(stacks), "pool": len(pools)}
    trace, in_trace = streams.table("events"), 0
    if not streams.tables["events"].is_within(limits):
        trace, in_trace = keep_known(trace, limits)
    initial, in_initial = keep_known_state(streams.states.initial or Snapshot(), limits)
    final, in_final = _final(streams, limits)
    labels, older = holders_of_labels(labels_within(streams.table("labels"), end))
    holders = streams.table("holders") if not len(older) else older
    marks = streams.table("marks")
    end_ns, outcome = ended
    missing = _missing(marks, end, manifest.outcome)
    marks = marks_within(marks, end)
    found = retained_timeline(
        marks,
        streams.past(),
        first,
        finder.extend(marks, end, end_ns, outcome),
    )
    return Recording(
        source=manifest.source,
        process=manifest.process,
        device=next((known for known in manifest.devices if known.index == device), Device(device)),
        trace=trace,
        stacks=stacks,
        initial=replace(initial, event=0),
        final=final,
        pools=pools,
        marks=found.marks,
        steps=found.steps,
        phases=found.phases,
        labels=_from(labels, first),
        holders=_from(holders_within(holders, end), first),
        counters=_counters(_within(streams.table("samples"), -1, end), first),
        past=found.past,
        notes=(
            *missing,
            *stray_notes(in_trace + in_initial + in_final),
            *_thinned(manifest.cap, found.past),
            *_several_threads(trace, found.phases),
        ),
    )


def _several_threads(trace: Trace, phases: Phases) -> list[Note]:
    """Return a note on what steps and phases mean where several threads have some at once."""
    if len(owners_of(phases)) < 2:
        return []  # nearly every run; the passes over all events would follow each refresh of a live one
    is_alloc = trace.action == Action.ALLOC
    n_shared = int(np.count_nonzero(of_several_threads(phases, len(trace)) & is_alloc))
    facts = []
    if train_at_once(phases):
        facts.append(
            "several threads trained at once: steps are those of one, peaks are of all of them, and the "
            "bytes of modules and the growth of leaks do not tell one thread from another"
        )
    if n_shared:
        facts.append(
            f"{n_shared:,} of {np.count_nonzero(is_alloc):,} allocations are in no phase: several threads "
            "were in different phases, and which of them allocated is not known"
        )
    return [Note(NoteCode.SEVERAL_THREADS, "; ".join(facts), n_shared)] if facts else []


def _missing(marks: Marks, end: int, outcome: Outcome) -> list[Note]:
    n_events = int(marks.event.max(initial=0))
    if outcome is Outcome.RUNNING or n_events <= end:
        return []
    text = (
        f"{n_events - end:,} of {n_events:,} events or more are missing: a file of this run is gone, or cut"
    )
    return [Note(NoteCode.MISSING_EVENTS, text, n_events - end)]


_LIMIT = re.compile(
    r"out of memory\..{0,200}?\bGPU (\d{1,4})\b.{0,400}?(\d{1,7}(?:\.\d{1,4})? (?:bytes|[KMGT]iB)) allowed;",
    re.DOTALL,
)
"""torch's own message under ``set_per_process_memory_fraction``: the only record of that call."""


def limit_notes(error: str, device: int, known: Sequence[Note]) -> list[Note]:
    """Return what the exception that ended a run says that this process may reserve.

    Nothing where it is among the *known* notes: the message has it rounded to hundredths of a GiB.
    """
    found = _LIMIT.search(error)
    if found is None or int(found[1]) != device or any(note.code == NoteCode.LIMIT for note in known):
        return []
    n_bytes = parse_bytes(found[2].replace(" bytes", "B"))
    text = f"{format_bytes(n_bytes)} allowed to this process (set_per_process_memory_fraction)"
    return [Note(NoteCode.LIMIT, text, n_bytes)]


def _final(streams: DeviceStreams, limits: dict[str, int]) -> tuple[Snapshot | None, int]:
    """Return the reported state if it is of the end; a state of another moment would only mislead."""
    reported = streams.states.reported
    if reported is None or reported.event != streams.first_event + len(streams):
        return None, 0
    return keep_known_state(replace(reported, event=len(streams)), limits)


def _from(table: OfBlocks, first: int) -> OfBlocks:
    """Return the rows from the event *first* on, relative to it; the summary repeats earlier ones there."""
    if not first:
        return table
    kept = table.rows(table.event >= first)
    return replace(kept, event=kept.event - first)


def _counters(counters: Counters, first: int) -> Counters:
    """Return all samples by time; those before the retained events have no known instant.

    Of two threads that sample at once the later one may be written first.
    """
    if (np.diff(counters.time_ns) < 0).any():
        counters = counters.rows(np.argsort(counters.time_ns, kind="stable"))
    if not first:
        return counters
    return replace(counters, event=np.where(counters.event >= first, counters.event - first, UNKNOWN))


def _thinned(cap: Cap | None, past: Past) -> list[Note]:
    """Return a note on what the size cap removed and what is still exact."""
    if not past.n_events or cap is None:
        return []
    index = past.steps.index
    steps = f" of steps {index[0]:,} to {index[-1]:,}" if len(index) else ""
    phases = f", of phases from step {len(past.summarized):,} on" if len(past.summarized) else " and phase"
    text = (
        f"detail{steps} ({past.n_events:,} events) was thinned to stay below {format_bytes(cap.max_bytes)}: "
        f"peaks per step{phases} are exact, allocations before are not known"
    )
    return [Note(NoteCode.THINNED, text, past.n_events)]


def stacks_of(stream: ColumnStream) -> tuple[Stacks, list[Note]]:
    """Return every call stack of a rank, and notes on broken references."""
    stacks, n_strays = keep_known_parents(Stacks(**stream.columns(), strings=stream.names()))
    return stacks, stray_notes(n_strays)


def stray_notes(n_strays: int) -> list[Note]:
    """Return a note on references to missing rows."""
    if not n_strays:
        return []
    text = f"{n_strays} references to call stacks or pools that the trace does not hold; they show as unknown"
    return [Note(NoteCode.UNKNOWN_REFERENCES, text, n_strays)]


def written_notes(stream: ColumnStream, device: int) -> list[Note]:
    """Return the notes that the recorder wrote about a device."""
    columns, names = stream.columns(), stream.names()
    rows = zip(*(columns[name].tolist() for name in ("device", "code", "text", "value")), strict=True)
    return [Note(names[code], names[text], value) for of, code, text, value in rows if of == device]


def obituary(started_ns: int, last_ns: int) -> Note:
    """Return the note on a process that ended without closing its trace."""
    if not last_ns:
        return Note(
            NoteCode.DIED, "the process is gone and never closed the trace; nothing of it carries a time"
        )
    when = datetime.fromtimestamp(last_ns // 10**9, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    after = f", {format_duration(last_ns - started_ns)} after the start" if 0 < started_ns <= last_ns else ""
    return Note(
        NoteCode.DIED, f"the process is gone and never closed the trace; its data reach until {when}{after}"
    )


def keep_known(table: AnyTable, limits: Mapping[str, int], instead: int = 0) -> tuple[AnyTable, int]:
    """Replace values of the columns *limits* that are negative or reach their limit by *instead*.

    Returns the table and the number of replaced values.
    """
    changed, n_strays = {}, 0
    for name, limit in limits.items():
        column = getattr(table, name)
        if len(column) and (column.min() < 0 or column.max() >= limit):
            stray = (column < 0) | (column >= limit)
            changed[name] = np.where(stray, column.dtype.type(instead), column)
            n_strays += int(stray.sum())
    return (replace(table, **changed) if changed else table), n_strays  # type: ignore[type-var]


def keep_known_state(state: Snapshot, limits: Mapping[str, int]) -> tuple[Snapshot, int]:
    """Do the same for the ``stack_id`` and ``pool`` of a state's segments and blocks."""
    segments, in_segments = keep_known(state.segments, limits)
    blocks, in_blocks = keep_known(state.blocks, {"stack_id": limits["stack_id"]})
    return replace(state, segments=segments, blocks=blocks), in_segments + in_blocks


def keep_known_parents(stacks: Stacks) -> tuple[Stacks, int]:
    """Make a node whose parent does not precede it a root: such a parent could make an endless loop."""
    parent = stacks.parent
    stray = (parent < 0) | (parent >= np.maximum(np.arange(len(parent)), 1))
    if not stray.any():
        return stacks, 0
    return replace(stacks, parent=np.where(stray, parent.dtype.type(0), parent)), int(stray.sum())


def marks_within(marks: Marks, n_events: int) -> Marks:
    """Move marks of events that are missing (yet) to the end; unknown codes become the nearest known."""
    marks, _ = keep_known(marks, {"kind": max(MarkKind) + 1}, instead=MarkKind.MARK)
    marks, _ = keep_known(marks, {"phase": max(Phase) + 1}, instead=Phase.OTHER)
    return _within(marks, 0, n_events)


def labels_within(labels: Labels, n_events: int) -> Labels:
    """Drop labels of missing events.

    A label is about the block that is live at its instant; at another instant it would name another block.
    """
    known, _ = keep_known(labels, {"category": max(Category) + 1}, instead=Category.UNKNOWN)
    beyond = (known.event > n_events) | (known.event < 0)
    return known.rows(~beyond) if beyond.any() else known


def holders_within(holders: Holders, n_events: int) -> Holders:
    """Drop paths to blocks of missing events, and words before the first path begins."""
    is_known = (holders.event <= n_events) & (holders.event >= 0) & (np.cumsum(holders.position == 0) > 0)
    return holders if is_known.all() else holders.rows(is_known)


def holders_of_labels(labels: Labels) -> tuple[Labels, Holders]:
    """Return the labels without holders, and these: before 1.4 and 2.3 they were names of labels."""
    found = {at: holding_of(name) for at, name in enumerate(labels.names) if name.startswith(PREFIX)}
    rows = np.flatnonzero(np.isin(labels.name, list(found)))
    if not len(rows):
        return labels, Holders.of()
    places = zip(
        labels.event[rows].tolist(), labels.address[rows].tolist(), labels.name[rows].tolist(), strict=True
    )
    paths = [(event, address, known.words) for event, address, at in places if (known := found[at])]
    return labels.rows(np.delete(np.arange(len(labels)), rows)), Holders.of_paths(paths)


def _within(table: Placed, first: int, last: int) -> Placed:
    """Return *table* with its events clipped; the same table where none is beyond, which is nearly always."""
    if not len(table) or (table.event.min() >= first and table.event.max() <= last):
        return table
    return replace(table, event=np.clip(table.event, first, last))
