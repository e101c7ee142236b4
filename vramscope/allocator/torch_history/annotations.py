"""Converts the annotations of torch's snapshot into marks on the trace of their device.

torch ≥ 2.5 records every ``record_function`` region of the recording thread, among them its own around
``Optimizer.step``, ``zero_grad`` and the data loader (torch/optim/optimizer.py, torch/utils/data).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from vramscope.allocator.torch_history.events import Events, Rows
from vramscope.model.marks import MarkKind, Marks, Phase
from vramscope.model.table import Array
from vramscope.model.trace import Action, Trace

_PHASES = (
    ("Optimizer.step#", Phase.OPTIMIZER),
    ("Optimizer.zero_grad#", Phase.ZERO_GRAD),
    ("enumerate(DataLoader)#", Phase.DATA),
)

OWN_REGIONS = tuple(prefix for prefix, _ in _PHASES)
"""Beginnings of the names of torch's own regions, all of which are phases."""

OWN_TEXT = "vramscope thread "
"""The beginning of what vramscope itself writes into entries: no text of the program's."""


@dataclass(slots=True)
class PendingMark:
    """One future row of ``Marks``."""

    kind: MarkKind
    time_ns: int
    event: int
    phase: Phase = Phase.OTHER
    value: int = 0
    name: str = ""


def annotation_marks(annotations: Rows, device: int, trace: Trace) -> list[PendingMark]:
    """Marks from one device's annotations, ordered by time."""
    rows = zip(
        annotations.column("name", (str,)),
        annotations.column("stage", (str,)),
        annotations.integers("time_us", "i8").tolist(),
        annotations.column("device", (int,), 0),
        strict=True,
    )
    ours = sorted(
        ((time_us, name, stage) for name, stage, time_us, at in rows if at == device), key=itemgetter(0)
    )
    time_ns = np.array([time_us * 1000 for time_us, _, _ in ours], "i8")
    # All at once: one search of 5 million events per mark took 0.07 s for 7,000 marks.
    first, last = (np.searchsorted(trace.time_ns, time_ns, side=side).tolist() for side in ("left", "right"))
    rows_with_instants = zip(ours, time_ns.tolist(), first, last, strict=True)
    found = [_mark(name, stage, at, instants) for (_, name, stage), at, *instants in rows_with_instants]
    return [mark for mark in found if mark is not None]


def _mark(name: str, stage: str, time_ns: int, instants: Sequence[int]) -> PendingMark | None:
    """Return a mark at one of two *instants*: before the events of its microsecond, and after them."""
    first, last = instants
    if name.startswith("ProfilerStep#"):
        return PendingMark(MarkKind.STEP, time_ns, last) if stage == "END" else None
    begins = stage == "START"
    phase, word = _meaning(name)
    # Stamps are whole microseconds: events of the same one belong inside.
    kind, instant = (MarkKind.PHASE_BEGIN, first) if begins else (MarkKind.PHASE_END, last)
    return PendingMark(kind, time_ns, instant, phase, name=word)


def _meaning(name: str) -> tuple[Phase, str]:
    """``Optimizer.step#AdamW.step`` → OPTIMIZER, ``AdamW``; any other region is the user's."""
    for prefix, phase in _PHASES:
        if name.startswith(prefix):
            return phase, name[len(prefix) :].partition(".")[0]
    return Phase.USER, name


def text_marks(events: Events, trace: Trace, order: Array | None) -> list[PendingMark]:
    """Marks of the texts that the program put into its entries, ordered by event.

    *order* has the entry of each event, where not all are events in their order.
    """
    texts = [(row, text) for row, text in events.metadata if not text.startswith(OWN_TEXT)]
    if not texts:
        return []
    is_annotation = np.array([word == "annotate" for word in events.words])[events.action]
    # The event that each row became, if the events are the rows in *order*; −1 where none did.
    n_rows = len(events)
    place = np.full(n_rows, -1)
    kept = np.arange(n_rows) if order is None else order
    place[kept] = np.arange(len(kept))
    instants = _instants(events, trace, place)
    found = [
        PendingMark(
            MarkKind.ANNOTATION,
            int(events.time_ns[row]),
            int(instants[row]),
            value=int(events.address[row]),
            name=text,
        )
        for row, text in texts
        if is_annotation[row]
    ]
    return sorted([*found, *_metadata_marks(texts, trace, place)], key=lambda mark: mark.event)


def _instants(events: Events, trace: Trace, place: Array) -> Array:
    """The number of events before each entry; by time where the entries had to be sorted."""
    is_event = place >= 0
    if (np.diff(place[is_event]) < 0).any():
        return np.searchsorted(trace.time_ns, events.time_ns, side="right")
    return np.cumsum(is_event) - is_event


def _metadata_marks(texts: Sequence[tuple[int, str]], trace: Trace, place: Array) -> list[PendingMark]:
    """A mark before each allocation with another text than the one before, and one at the end."""
    names = {"": 0}
    code = np.zeros(len(trace) + 1, "i8")
    for row, text in texts:
        if place[row] >= 0:
            code[place[row]] = names.setdefault(text, len(names))
    allocs = np.append(np.flatnonzero(trace.action == Action.ALLOC), len(trace))
    changes = allocs[np.flatnonzero(np.diff(code[allocs], prepend=0))]
    words = tuple(names)
    last = len(trace) - 1
    return [
        PendingMark(MarkKind.METADATA, int(trace.time_ns[min(at, last)]), at, name=words[code[at]])
        for at in changes.tolist()
    ]


def marks_of(marks: Iterable[PendingMark], placed: Sequence[PendingMark] = ()) -> Marks:
    """The table of *marks*, ordered by event; equal ones keep their order.

    Those that are *placed* lie at their events exactly; the others were placed by time.
    """
    rows = sorted(marks, key=lambda mark: mark.time_ns)
    # Two stamps in one microsecond may cross: instants follow the order of the marks.
    events = np.maximum.accumulate(np.array([row.event for row in rows], dtype="i8"))
    if placed:
        events = np.append(events, np.array([row.event for row in placed], dtype="i8"))
        order = np.argsort(events, kind="stable")
        every = [*rows, *placed]
        rows, events = [every[at] for at in order.tolist()], events[order]
    names = {"": 0}
    for row in rows:
        names.setdefault(row.name, len(names))
    return Marks.of(
        kind=[row.kind for row in rows],
        phase=[row.phase for row in rows],
        time_ns=[row.time_ns for row in rows],
        event=events,
        value=[row.value for row in rows],
        name=[names[row.name] for row in rows],
        names=tuple(names),
    )
