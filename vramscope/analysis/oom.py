"""Did an allocation fail, and what was there then?"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vramscope.allocator.replay import state_at
from vramscope.allocator.settings import Settings
from vramscope.analysis import Analysis
from vramscope.analysis._place import place
from vramscope.analysis.folding import fold
from vramscope.analysis.timeline import timeline
from vramscope.model.finding import Finding
from vramscope.model.marks import MarkKind, Phase
from vramscope.model.recording import Recording
from vramscope.model.snapshot import BlockState
from vramscope.model.stacks import Frame
from vramscope.model.table import Table
from vramscope.model.trace import Action
from vramscope.units import format_bytes

# A batch-size search fails a few times; a program that lives on failures would fill the page.
_MOST_TOLD = 5


@dataclass(frozen=True, slots=True)
class Failures(Table):
    """One row per allocation that failed for good, as the program was told."""

    DTYPES: ClassVar = {
        "event": "i8",
        "time_ns": "i8",
        "size": "i8",
        "allocated": "i8",
        "reserved": "i8",
        "largest_free": "i8",
        "device_free": "i8",
        "stack_id": "i4",
    }

    event: NDArray[Any]
    """Of the OOM; as an instant, the state that the request met."""
    time_ns: NDArray[Any]
    size: NDArray[Any]
    """Bytes that could not be had, rounded as the allocator does."""
    allocated: NDArray[Any]
    reserved: NDArray[Any]
    largest_free: NDArray[Any]
    """Bytes of the largest free block, of any pool and stream."""
    device_free: NDArray[Any]
    """Bytes that the driver still had; −1 where it was not recorded."""
    stack_id: NDArray[Any]
    where: tuple[tuple[int | None, Phase | None, Frame | None], ...] = ()
    """Of each row: step, phase and the user's innermost frame; None where unknown."""


def oom(recording: Recording) -> Failures:
    """Every failed allocation; a state is put together for each, see ``state_at`` for its cost."""
    trace = recording.trace
    events = np.flatnonzero(trace.action == Action.OOM)
    totals = timeline(recording)
    return Failures.of(
        event=events,
        time_ns=trace.time_ns[events],
        size=trace.size[events],
        allocated=totals.allocated[events],
        reserved=totals.reserved[events],
        largest_free=[_largest_free(recording, event) for event in events.tolist()],
        device_free=_device_free(recording, events),
        stack_id=trace.stack_id[events],
        where=_where(recording, events),
    )


def _largest_free(recording: Recording, instant: int) -> int:
    process = recording.process
    settings = Settings.from_snapshot(process.allocator, torch=process.torch)
    blocks = state_at(recording.trace, recording.initial, instant, settings).blocks
    return int(blocks.size[blocks.state == BlockState.INACTIVE].max(initial=0))


def _device_free(recording: Recording, events: NDArray[Any]) -> NDArray[Any]:
    """From the mark that was made with each OOM."""
    marks = recording.marks.rows(recording.marks.kind == MarkKind.OOM)
    value = dict(zip(marks.event.tolist(), marks.value.tolist(), strict=True))
    return np.array([value.get(event + 1, value.get(event, -1)) for event in events.tolist()], dtype="i8")


def _where(
    recording: Recording, events: NDArray[Any]
) -> tuple[tuple[int | None, Phase | None, Frame | None], ...]:
    if not len(events):
        return ()
    folded = fold(recording.stacks)
    found = []
    for event in events.tolist():
        stack_id = int(folded.of[recording.trace.stack_id[event]])
        frame = folded.stacks.frame(stack_id) if stack_id else None
        found.append((*place(recording, event + 1), frame))
    return tuple(found)


def findings(failures: Failures) -> list[Finding]:
    """The last failures, each in one sentence."""
    rows = range(len(failures))[-_MOST_TOLD:]
    return [_finding(failures, row) for row in rows]


def _finding(failures: Failures, row: int) -> Finding:
    step, phase, frame = failures.where[row]
    evidence = {name: int(column[row]) for name, column in failures.columns()}
    moment = "" if step is None else f" at step {step}"
    moment += "" if phase is None else f" in {phase.name.lower().replace('_', ' ')}"
    free = evidence["device_free"]
    device = "" if free < 0 else f", {format_bytes(free)} free on the device"
    claim = (
        f"out of memory{moment}: {format_bytes(evidence['size'])} could not be had, with "
        f"{format_bytes(evidence['allocated'])} allocated of {format_bytes(evidence['reserved'])} reserved, "
        f"{format_bytes(evidence['largest_free'])} in the largest free block{device}"
    )
    return Finding(
        "oom",
        "error",
        claim,
        file=frame and frame.file,
        line=frame and frame.line,
        function=frame and frame.function,
        n_bytes=evidence["size"],
        evidence=evidence,
    )


ANALYSIS = Analysis("oom", "Did an allocation fail, and what was there then?", oom, findings)
