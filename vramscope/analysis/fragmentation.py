"""How much of the reserved memory was of no use, when, and what kept it so?"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis import Analysis
from vramscope.analysis.churn import GAINS, Churn, churn_of
from vramscope.analysis.churn.free_segments import free_segment_bytes
from vramscope.analysis.folding import fold
from vramscope.analysis.lines import place_words
from vramscope.analysis.pins import Pins, pins
from vramscope.analysis.step_and_phase import place
from vramscope.analysis.timeline import levels, times
from vramscope.model.codes import FindingKind, Severity
from vramscope.model.finding import Finding
from vramscope.model.recording import Recording
from vramscope.model.stacks import Frame
from vramscope.model.table import Table
from vramscope.model.trace import Action
from vramscope.units import format_bytes

_WORTH_SAYING = 0.1
_LEAST_BYTES = 64 << 20
"""Below that it is not worth a word, whatever share it is."""
_ADVICE = (
    "`vramscope fit` replays this recording under other allocator settings (expandable_segments:True, "
    "max_split_size_mb, …): it names the one that helps, with the bytes it saves, or says that none does."
)


@dataclass(frozen=True, slots=True)
class Parts(Table):
    """What the reserved bytes consist of; row k is instant k. The first five sum up to ``reserved``."""

    DTYPES: ClassVar = {
        "requested": "i8",
        "rounding": "i8",
        "pending": "i8",
        "inactive_split": "i8",
        "releasable": "i8",
        "reserved": "i8",
        "time_ns": "i8",
    }

    requested: NDArray[Any]
    """What the program asked for and still uses."""
    rounding: NDArray[Any]
    """What the blocks in use are larger: internal fragmentation."""
    pending: NDArray[Any]
    """Freed, but waiting for another stream."""
    inactive_split: NDArray[Any]
    """Free pieces of segments that are in use elsewhere: external fragmentation."""
    releasable: NDArray[Any]
    """Segments wholly free."""
    reserved: NDArray[Any]
    time_ns: NDArray[Any]


class PinnedBy(NamedTuple):
    """Where the block that keeps a segment was allocated."""

    frame: Frame
    is_library: bool
    """Whether the frame is a library's because none of the stack is the user's."""


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """Over time, and at its worst."""

    parts: Parts
    churn: Churn
    worst: int = 0
    """The instant before a call of cudaMalloc at which most bytes were free pieces of segments in use;
    without any such call the instant of the most such bytes."""
    was_asked: bool = False
    """Whether cudaMalloc was called at the worst instant."""
    step: int | None = None
    """Of the worst instant."""
    pinned: Pins = field(default_factory=Pins.of)
    """What kept the mostly free segments then."""
    pinned_by: PinnedBy | None = None
    """Where the first of these was allocated; None where that is not known."""
    is_expandable: bool = False
    """Whether the allocator used expandable segments already."""

    @property
    def unusable_bytes(self) -> int:
        """Free pieces at the worst instant."""
        return int(self.parts.inactive_split[self.worst])


def fragmentation(recording: Recording) -> Fragmentation:
    """Exact at every instant: at each, ``parts`` are those of ``identity``; 1 s per million events."""
    parts = parts_over_time(recording)
    worst, was_asked = _worst(recording, parts)
    pinned = pins(recording, worst)
    return Fragmentation(
        parts=parts,
        churn=churn_of(recording),
        worst=worst,
        was_asked=was_asked,
        step=place(recording, worst)[0],
        pinned=pinned,
        pinned_by=_allocated_at(recording, int(pinned.stack_id[0])) if len(pinned) else None,
        is_expandable=bool(
            (recording.trace.action == Action.SEGMENT_MAP).any()
            or recording.initial.segments.is_expandable.any()
        ),
    )


def parts_over_time(recording: Recording) -> Parts:
    """The parts alone."""
    allocated, active, reserved, requested = levels(recording)[1:]
    unused = reserved - active
    # Only a record that contradicts itself has free segments without free bytes.
    free = free_segment_bytes(recording)
    releasable = np.minimum(free, unused, out=free)
    # In place: fresh memory costs more than the subtraction.
    return Parts(
        requested=requested,
        pending=np.subtract(active, allocated, out=active),
        rounding=np.subtract(allocated, requested, out=allocated),
        inactive_split=np.subtract(unused, releasable, out=unused),
        releasable=releasable,
        reserved=reserved,
        time_ns=times(recording),
    )


def _worst(recording: Recording, parts: Parts) -> tuple[int, bool]:
    """See ``Fragmentation.worst``."""
    asked = np.flatnonzero(np.isin(recording.trace.action, (*GAINS, Action.OOM)))
    if not len(asked):
        return int(parts.inactive_split.argmax()), False
    return int(asked[parts.inactive_split[asked].argmax()]), True


def _allocated_at(recording: Recording, stack_id: int) -> PinnedBy | None:
    """The line to name for a stack; None where the stack has neither a line of the user nor of a library."""
    folded = fold(recording.stacks)
    frame = folded.frame(stack_id)
    return PinnedBy(frame, folded.is_library(int(folded.place[stack_id]))) if frame else None


def findings(found: Fragmentation) -> list[Finding]:
    """Memory that could not be used, with what pinned it; and retries."""
    said = []
    reserved = int(found.parts.reserved[found.worst])
    if found.unusable_bytes >= max(_WORTH_SAYING * reserved, _LEAST_BYTES):
        said.append(_unusable(found, reserved))
    if found.churn.n_retries:
        said.append(_retries(found.churn))
    return said


def _unusable(found: Fragmentation, reserved: int) -> Finding:
    place = f"at event {found.worst}" if found.step is None else f"in step {found.step}"
    sizes = f"{format_bytes(found.unusable_bytes)} of {format_bytes(reserved)}"
    called = ", when cudaMalloc was called" if found.was_asked else ""
    claim = f"{sizes} reserved were free pieces of segments in use {place}{called}{_pinned(found)}"
    own = found.pinned_by
    frame = own.frame if own and not own.is_library else None
    return Finding(
        kind=FindingKind.FRAGMENTATION,
        severity=Severity.WARNING,
        claim=claim,
        file=frame.file if frame else None,
        line=frame.line if frame else None,
        function=frame.function if frame else None,
        n_bytes=found.unusable_bytes,
        advice=None if found.is_expandable else _ADVICE,
        evidence={
            "instant": found.worst,
            "reserved_bytes": reserved,
            "pinned_bytes": found.pinned.total_bytes,
            "pinned_segments": len(np.unique(found.pinned.segment)),
        },
    )


def _pinned(found: Fragmentation) -> str:
    """The worst segment, in words."""
    if not len(found.pinned):
        return ""
    kept, size = (
        format_bytes(int(column[0])) for column in (found.pinned.kept_bytes, found.pinned.block_size)
    )
    n_others = int(found.pinned.n_blocks[0]) - 1
    others = f" and {n_others} smaller" if n_others else ""
    at = found.pinned_by
    where = f" from {place_words(at.frame.file, at.frame.line)}" + " (library)" * at.is_library if at else ""
    return f"; {kept} of it pinned by a block of {size}{where}{others}"


def _retries(known: Churn) -> Finding:
    times = "once" if known.n_retries == 1 else f"{known.n_retries} times"
    return Finding(
        kind=FindingKind.FRAGMENTATION,
        severity=Severity.WARNING,
        claim=f"the cache was released {times} because an allocation did not fit: that stalls the device",
        n_bytes=known.released_bytes,
        evidence={"retries": known.n_retries, "ooms": known.n_ooms, "released": known.n_released},
    )


ANALYSIS = Analysis(
    "fragmentation",
    "How much of the reserved memory was of no use, when, and what kept it so?",
    fragmentation,
    findings,
)
