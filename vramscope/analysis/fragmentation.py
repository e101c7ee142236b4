"""Measures how much reserved memory was unusable, when, and which blocks caused it."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from vramscope.allocator.levels import levels, tensor_bytes, unmappable_bytes
from vramscope.allocator.settings import Settings
from vramscope.allocator.state_index import state_from_nearest
from vramscope.analysis import asking
from vramscope.analysis.churn import GAINS, Churn, churn_of, free_segment_bytes
from vramscope.analysis.folding import fold
from vramscope.analysis.lines import place_words
from vramscope.analysis.pins import Pins, pins_of
from vramscope.analysis.private_pools import of_private
from vramscope.analysis.recorded_settings import recorded_limit, recorded_settings
from vramscope.analysis.shared_results import memoized
from vramscope.analysis.step_and_phase import step_and_phase_at
from vramscope.analysis.timeline import Totals, timeline
from vramscope.analysis.worded import worded
from vramscope.model.codes import FindingKind
from vramscope.model.finding import Finding
from vramscope.model.recording import Recording
from vramscope.model.stacks import Frame
from vramscope.model.table import Array, Int64, Table
from vramscope.model.trace import Action
from vramscope.units import format_bytes

_WORTH_SAYING = 0.1
_LEAST_BYTES = 64 << 20
"""Findings below this many bytes are not reported, whatever their share."""


@dataclass(frozen=True, slots=True)
class Parts(Table):
    """The parts of the reserved bytes; row k is instant k. All before the reserved bytes sum up to them."""

    requested_bytes: Int64
    """Bytes that the program requested and still uses."""
    rounding_bytes: Int64
    """Bytes of blocks in use beyond the requests: internal fragmentation."""
    pending_bytes: Int64
    """Bytes freed by the program but waiting for another stream."""
    inactive_split_bytes: Int64
    """Free pieces of segments that are in use elsewhere: external fragmentation."""
    releasable_bytes: Int64
    """Bytes of segments that are entirely free."""
    private_pools_bytes: Int64
    """Free bytes of private pools, which are in no part before: see ``Identity.private_pools_bytes``."""
    reserved_bytes: Int64
    time_ns: Int64


class PinnedBy(NamedTuple):
    """The line that allocated the block that keeps a segment."""

    frame: Frame
    is_library: bool
    """Whether the frame is a library's because no frame of the stack is the user's."""


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """Fragmentation over time, and at its worst instant."""

    parts: Parts
    churn: Churn
    worst: int = 0
    """The instant before a call of cudaMalloc with the most bytes in free pieces of used segments; without
    any such call the instant with the most such bytes.
    """
    was_asked: bool = False
    """Whether cudaMalloc was called at the worst instant."""
    step: int | None = None
    """The step of the worst instant."""
    pinned: Pins = field(default_factory=Pins.of)
    """The blocks that kept the mostly free segments then."""
    pinned_by: PinnedBy | None = None
    """Where the first of these was allocated; None where that is unknown."""
    is_expandable: bool = False
    """Whether the allocator already used expandable segments."""
    headroom_bytes: int = -1
    """What this process could still reserve when it had reserved most; −1 where no capacity is recorded."""
    returnable_bytes: int = 0
    """Bytes of the free pieces at the worst instant that the driver gets back all the same: whole units of
    expandable segments."""
    is_predicted: bool = False
    """Whether a dry run has it: nothing was reserved, and no cache released."""

    @property
    def unusable_bytes(self) -> int:
        """Bytes in free pieces at the worst instant that the driver cannot get back."""
        return max(int(self.parts.inactive_split_bytes[self.worst]) - self.returnable_bytes, 0)

    @property
    def is_short(self) -> bool:
        """Whether memory was short: a retry, an OOM, or less room on the device than the free pieces have."""
        is_near = 0 <= self.headroom_bytes <= self.unusable_bytes
        return is_near or bool(self.churn.n_retries or self.churn.n_ooms)


def fragmentation(recording: Recording) -> Fragmentation:
    """Measure fragmentation at every instant, exactly as ``identity`` does; 1 s per million events."""
    parts = parts_over_time(recording)
    worst, was_asked = _worst(recording, parts)
    state = state_from_nearest(recording, worst)
    pinned = pins_of(recording, state)
    returnable = unmappable_bytes(state, recorded_settings(recording, state))
    return Fragmentation(
        parts=parts,
        churn=churn_of(recording),
        worst=worst,
        was_asked=was_asked,
        step=step_and_phase_at(recording, worst)[0],
        pinned=pinned,
        pinned_by=_allocated_at(recording, int(pinned.stack_id[0])) if len(pinned) else None,
        is_expandable=bool(
            (recording.trace.action == Action.SEGMENT_MAP).any()
            or recording.initial.segments.is_expandable.any()
        ),
        headroom_bytes=_headroom(recording, parts),
        returnable_bytes=int(returnable.sum()),
        is_predicted=recording.source == "predicted",
    )


@memoized
def parts_over_time(recording: Recording) -> Parts:
    """The parts of the reserved bytes at every instant."""
    return parts_of(recording, timeline(recording), tensor_bytes(recording.trace, recording.initial))


def parts_of(recording: Recording, totals: Totals, requested: Array) -> Parts:
    """The parts where the levels are known already, *requested* as ``tensor_bytes`` has them.

    *recording* is the events, or a piece of them with the state before it.
    """
    pending = totals.active_bytes - totals.allocated_bytes
    unused = totals.reserved_bytes - totals.active_bytes
    free = free_segment_bytes(recording)
    # Only a contradictory record has free segments without free bytes.
    releasable = np.minimum(free, unused, out=free)
    kept, whole = _free_in_private_pools(recording)
    if len(kept):
        kept = np.minimum(kept, unused)
        unused -= kept
        releasable = np.minimum(np.maximum(releasable - whole, 0), unused)
    else:
        kept = _zeros(len(unused))
    # In place, and without the zeros that most recordings have: 8 MB per part of a million events.
    return Parts(
        requested_bytes=requested,
        pending_bytes=pending if pending.any() else _zeros(len(pending)),
        rounding_bytes=totals.allocated_bytes - requested,
        inactive_split_bytes=np.subtract(unused, releasable, out=unused),
        releasable_bytes=releasable,
        private_pools_bytes=kept,
        reserved_bytes=totals.reserved_bytes,
        time_ns=totals.time_ns,
    )


def _zeros(n: int) -> Array:
    """Return *n* zeros that take no memory."""
    return np.broadcast_to(np.int64(0), n)


def _free_in_private_pools(recording: Recording) -> tuple[Array, Array]:
    """Return the free bytes of private pools at every instant, and those of whole segments; else nothing."""
    private, index = of_private(recording)
    if private is None:
        return np.zeros(0, "i8"), np.zeros(0, "i8")
    _, _, active, reserved = levels(private.trace, private.initial)
    return np.maximum(reserved - active, 0)[index], free_segment_bytes(private)[index]


def _worst(recording: Recording, parts: Parts) -> tuple[int, bool]:
    """Compute ``Fragmentation.worst`` and whether cudaMalloc was called there."""
    trace = recording.trace
    # A request of a private pool never takes from the default one, whose pieces count here.
    asked = np.flatnonzero(np.isin(trace.action, (*GAINS, Action.OOM)) & (trace.pool <= 0))
    if not len(asked):
        return int(parts.inactive_split_bytes.argmax()), False
    return int(asked[parts.inactive_split_bytes[asked].argmax()]), True


def _headroom(recording: Recording, parts: Parts) -> int:
    """See ``Fragmentation.headroom_bytes``: within the device, the process's limit, and what the driver
    reported as free."""
    process, counters = recording.process, recording.counters
    most = int(parts.reserved_bytes.max())
    capacity = recording.device.total_bytes
    fraction = Settings.from_snapshot(process.allocator, torch=process.torch).memory_fraction
    limits = [capacity] if capacity else []
    if capacity and fraction is not None:
        limits.append(int(capacity * fraction))
    limit = recorded_limit(recording)
    if limit is not None:
        limits.append(limit)
    free = counters.device_free_bytes[counters.device_free_bytes >= 0]
    room = [max(each - most, 0) for each in limits] + free.tolist()
    return min(room, default=-1)


def _allocated_at(recording: Recording, stack_id: int) -> PinnedBy | None:
    """The line to name for a stack; None where no frame is the user's or a library's."""
    folded = fold(recording.stacks)
    frame = folded.frame(stack_id)
    return PinnedBy(frame, folded.is_library(int(folded.place[stack_id]))) if frame else None


def findings(found: Fragmentation) -> list[Finding]:
    """Unusable memory with what pinned it, and retries."""
    reported = []
    reserved = int(found.parts.reserved_bytes[found.worst])
    # A cache that lies idle costs nothing until something is asked of the driver.
    is_felt = found.was_asked or found.is_short
    if is_felt and found.unusable_bytes >= max(_WORTH_SAYING * reserved, _LEAST_BYTES):
        reported.append(_unusable(found, reserved))
    known = found.churn
    if known.n_retries:
        times = "once" if known.n_retries == 1 else f"{known.n_retries} times"
        evidence = {"retries": known.n_retries, "ooms": known.n_ooms, "released": known.n_released}
        wording = f"{'predicted' if found.is_predicted else 'retries'}.{FindingKind.FRAGMENTATION}"
        reported.append(worded(wording, known.released_bytes, None, evidence, times=times))
    return reported


def _unusable(found: Fragmentation, reserved: int) -> Finding:
    own, n_segments = found.pinned_by, len(np.unique(found.pinned.segment))
    words = {
        "place": f"at event {found.worst}" if found.step is None else f"in step {found.step}",
        "were": "would be" if found.is_predicted else "were",
        "called": f", when cudaMalloc {'is' if found.is_predicted else 'was'} called"
        if found.was_asked
        else "",
        "pinned": _pinned(found),
    }
    evidence = {"instant": found.worst, "reserved_bytes": reserved}
    evidence |= {"pinned_bytes": found.pinned.total_bytes, "pinned_segments": n_segments}
    # With room left, the driver serves what these pieces cannot: they cost nothing yet.
    wording = f"{'short' if found.is_short else 'roomy'}.{FindingKind.FRAGMENTATION}"
    frame = own.frame if own and not own.is_library else None
    said = worded(wording, found.unusable_bytes, frame, evidence, **words)
    return replace(said, advice=None) if found.is_expandable else said


def _pinned(found: Fragmentation) -> str:
    """Describe the worst segment in words."""
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


ANALYSIS = asking(
    "How much reserved memory was unusable, when, and which blocks caused it?", fragmentation, findings
)
