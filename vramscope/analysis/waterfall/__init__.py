"""All bytes of the device at each sample: tensors, torch's cache, and memory outside of torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from vramscope.allocator.replay.contradictions import instant_of_sample
from vramscope.analysis import asking
from vramscope.analysis.fragmentation import parts_over_time
from vramscope.analysis.shared_results import memoized
from vramscope.analysis.timeline import timeline
from vramscope.analysis.waterfall.outside_growth import OutsideGrowth, growth_of
from vramscope.analysis.worded import worded
from vramscope.model.codes import FindingKind, NoteCode
from vramscope.model.counters import UNKNOWN, Counters
from vramscope.model.finding import Finding
from vramscope.model.recording import Recording
from vramscope.model.table import Array, Int64, Table
from vramscope.package_data import rows
from vramscope.units import format_duration

_EVENTS = "the allocator's events"
_COUNTERS = "torch's counters"
_DRIVER = "NVML"
_DIFFERENCE = "NVML less torch's counters"
_NCCL = "NCCL, through torch's process groups"
_NOT_REPORTED = "not reported: NCCL 2.29.7 and torch 2.12 are the first that report it"
_NOT_ATTRIBUTED = "not available at this sample: NCCL's figure is not within what the driver attributes"
_NO_DRIVER = "not available: nobody asked the driver, or it did not answer"
_TEXT, _NOT_IN_TEXT = "the file", "not available: the file does not say"
_COMBINED = ("allocated", "unallocated", "reserved", "outside", "used")


@dataclass(frozen=True, slots=True)
class Bar:
    """One part of the device's memory at a sample."""

    name: str
    n_bytes: int | None
    """Bytes of the part; None if not known, when a bar over several parts may be known instead."""
    source: str
    """Source of the number, or the reason why there is none."""


class BarWords(NamedTuple):
    """The words for a bar."""

    in_terminal: str
    on_page: str
    meaning: str = ""
    """Empty for a quantity that the page defines by its name."""


BAR_WORDS = {name: BarWords(*words) for name, *words in rows(__file__, "bars.tsv", "bar")}


@dataclass(frozen=True, slots=True)
class Waterfall(Table):
    """One row per sample, in bytes; −1 for what is not known.

    The parts from ``requested_bytes`` to ``private_pools_bytes`` sum up to ``reserved_bytes``; with those
    from ``own_outside_bytes`` to ``unattributed_bytes``, to ``used_bytes``; with ``free_bytes`` and
    ``driver_bytes``, to ``total_bytes``.
    """

    time_ns: Int64
    """Time of each sample."""
    instant: Int64
    """Instant of the trace at which all four quantities equal the sample's; −1 if there is none near it."""
    requested_bytes: Int64
    """Bytes of live tensors."""
    rounding_bytes: Int64
    """Bytes by which their blocks are larger."""
    pending_bytes: Int64
    """Freed bytes that wait for another stream."""
    inactive_split_bytes: Int64
    """Cached bytes: free pieces of segments in use."""
    releasable_bytes: Int64
    """Cached bytes: segments that are wholly free."""
    private_pools_bytes: Int64
    """Free bytes of private pools (of CUDA graphs, MemPools), which serve nothing else; −1 if they are among
    the two parts before."""
    own_outside_bytes: Int64
    """Bytes of this process outside of torch's allocator: CUDA's context, libraries, NCCL, raw cudaMalloc.
    The bar of this name is without ``nccl_bytes`` where these are known."""
    others_bytes: Int64
    """Bytes of other processes."""
    unattributed_bytes: Int64
    """Bytes used on the device by no process that the driver lists."""
    free_bytes: Int64
    """Free bytes of the device."""
    driver_bytes: Int64
    """The driver's own reserve: neither used nor free."""
    allocated_bytes: Int64
    """Allocated bytes, by torch's counter."""
    reserved_bytes: Int64
    """Reserved bytes, by torch's counter."""
    used_bytes: Int64
    """Used bytes of the device, by the driver."""
    total_bytes: Int64
    """Size of the device, by the driver."""
    drift_bytes: Int64
    """Change of ``reserved_bytes`` while the driver was asked; ``own_outside_bytes`` may be wrong by it."""
    nccl_bytes: Int64
    """Bytes of the communicators of torch's process groups, by NCCL; a part of ``own_outside_bytes``."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Reason why a part is not available, by the part's name."""
    growth: OutsideGrowth = field(default_factory=OutsideGrowth)
    """Growth of the parts outside of the allocator."""

    has_clock: bool = True
    """Whether the times are real; otherwise they are the samples' order."""
    is_text: bool = False
    """Whether the values are those that a log or an error message names, and nobody was asked."""

    @property
    def fullest(self) -> int:
        """The row with the most used bytes of the device; without the driver, the most that torch holds."""
        held = np.maximum(self.reserved_bytes, self.allocated_bytes)
        return int((self.used_bytes if (self.used_bytes >= 0).any() else held).argmax())

    @property
    def last(self) -> int:
        """The last row with numbers from the driver; the last of all if no row has any."""
        known = np.flatnonzero(self.used_bytes >= 0)
        return int(known[-1]) if len(known) else len(self) - 1

    def parts(self) -> dict[str, Array]:
        """Return the parts that sum up to the device by name, −1 where one is not known.

        ``allocated``, ``unallocated``, ``reserved``, ``outside`` and ``used`` stand for several that are not
        known singly.
        """
        of = {name.removesuffix("_bytes"): column for name, column in self.columns()}
        allocated, reserved, used = of["allocated"], of["reserved"], of["used"]
        has_nccl = (of["nccl"] >= 0) & (of["nccl"] <= of["own_outside"])
        found = {name: of[name] for name in PARTS_OF_RESERVED}
        found["allocated"] = np.where(of["requested"] < 0, allocated, UNKNOWN)
        is_vague = (of["releasable"] < 0) & (reserved >= 0) & (allocated >= 0)
        found["unallocated"] = _where(is_vague, reserved - allocated - np.maximum(of["pending"], 0))
        found["reserved"] = np.where((of["requested"] < 0) & (allocated < 0), reserved, UNKNOWN)
        found["nccl"] = np.where(has_nccl, of["nccl"], UNKNOWN)
        found["own_outside"] = np.where(has_nccl, of["own_outside"] - of["nccl"], of["own_outside"])
        found |= {name: of[name] for name in ("others", "unattributed", "free", "driver")}
        beyond = sum(np.maximum(of[name], 0) for name in ("own_outside", "others", "unattributed"))
        is_vague = (np.minimum(of["own_outside"], of["others"]) < 0) & (used >= 0)
        rest = used - np.maximum(reserved, 0) - beyond
        # Without torch's reserved bytes, as in a log of nvidia-smi, theirs are in it too.
        found["outside"] = _where(is_vague & (reserved >= 0), rest)
        found["used"] = _where(is_vague & (reserved < 0), rest)
        return {name: found[name] for name in BAR_WORDS}

    def bars(self, row: int) -> tuple[Bar, ...]:
        """Return every part at a sample; the known parts sum up to the total, or to the known part of it."""
        inside = _EVENTS if self.instant[row] >= 0 else _COUNTERS
        sources = dict.fromkeys((*PARTS_OF_RESERVED, "allocated", "unallocated", "reserved"), inside)
        sources |= {"nccl": _NCCL, "own_outside": _DIFFERENCE, "outside": _DIFFERENCE}
        found = []
        for name, column in self.parts().items():
            n_bytes, reason = int(column[row]), self.reasons.get(name, _NO_DRIVER)
            if n_bytes >= 0:
                found.append(Bar(name, n_bytes, _TEXT if self.is_text else sources.get(name, _DRIVER)))
            elif name not in _COMBINED and (name != "nccl" or name in self.reasons):
                found.append(Bar(name, None, _NOT_IN_TEXT if self.is_text else reason))
        return tuple(found)


def missing_parts(bars: tuple[Bar, ...]) -> dict[str, list[str]]:
    """Return the names of the bars that are not available, by the reason."""
    found: dict[str, list[str]] = {}
    for bar in bars:
        if bar.n_bytes is None:
            found.setdefault(bar.source, []).append(bar.name)
    return found


@memoized
def waterfall(recording: Recording) -> Waterfall:
    """Return all parts of the device's memory at every sample; takes 1 s per million events."""
    counters = recording.counters
    has_driver = counters.device_used_bytes >= 0
    # If the driver is sampled, samples of torch's counters alone (at phases) lack half of the bars.
    has_torch = np.maximum(counters.reserved_bytes, counters.allocated_bytes) >= 0
    counters = counters.rows(has_driver if has_driver.any() else has_torch)
    inside = reserved_parts(recording, counters)
    outside = outside_parts(counters)
    levels = {
        **inside,
        **outside,
        "allocated": counters.allocated_bytes,
        "reserved": counters.reserved_bytes,
        "used": counters.device_used_bytes,
        "total": counters.device_total_bytes,
        "drift": counters.reserved_drift_bytes,
        "nccl": counters.nccl_bytes,
    }
    instant = levels.pop("instant")
    return Waterfall.of(
        time_ns=counters.time_ns,
        instant=instant,
        **{f"{name}_bytes": level for name, level in levels.items()},
        reasons=_reasons(recording, levels),
        growth=growth_of(recording, {"time_ns": counters.time_ns} | levels),
        has_clock=recording.counters.has_clock,
        is_text=recording.source in ("log", "telemetry") or not recording.has_layout,
    )


def outside_parts(counters: Counters) -> dict[str, Array]:
    """Return the parts outside of torch's allocator by name, −1 where one is not known."""
    used, process = counters.device_used_bytes, counters.process_used_bytes
    own = _where((process >= 0) & (counters.reserved_bytes >= 0), process - counters.reserved_bytes)
    both = (used >= 0) & (process >= 0)
    listed = counters.others_used_bytes
    others = np.where(listed >= 0, listed, _where(both, used - process))
    free = counters.device_free_bytes
    total = counters.device_total_bytes
    return {
        "own_outside": own,
        "others": others,
        "unattributed": _where(both & (own >= 0), used - process - others),
        # Without free bytes from the driver or the trace, its reserve is not known either.
        "free": np.where(free >= 0, free, _where((total >= 0) & (used >= 0), total - used)),
        "driver": _where((free >= 0) & (used >= 0) & (total >= 0), total - used - free),
    }


def _where(is_known: Array, value: Array) -> Array:
    """Return *value* where known, and at least 0: two counters read a moment apart may differ below it."""
    return np.where(is_known, np.maximum(value, 0), UNKNOWN)


def _reasons(recording: Recording, columns: Mapping[str, Array]) -> dict[str, str]:
    notes = {note.code: note.text for note in recording.notes}
    reason = next(
        (notes[code] for code in ("nvml_device", "nvml_process", "nvml_process_memory") if code in notes),
        None,
    )
    if not len(columns["used"]):
        return {}
    whole = notes.get(NoteCode.NVML_DEVICE)
    waits = "not available: blocks wait for other streams, and torch's counter mixes their requests in"
    no_events = "not available: only the allocator's events show pools; such bytes count as cached"
    reasons = {"requested": waits, "rounding": waits, "private_pools": no_events}
    if recording.process.world_size > 1 or (columns["nccl"] >= 0).any():
        known = (columns["nccl"] >= 0).any()
        reasons["nccl"] = _NOT_ATTRIBUTED if known else _NOT_REPORTED
    if reason is not None:
        reasons |= dict.fromkeys(("own_outside", "others", "unattributed"), f"not available: {reason}")
    if whole is not None:
        reasons |= dict.fromkeys(("free", "driver"), f"not available: {whole}")
    return reasons


_GROWN = {
    "own_outside": FindingKind.NON_TORCH_GROWTH,
    "others": FindingKind.OTHER_PROCESS,
    "outside": FindingKind.OUTSIDE_GROWTH,
}


def findings(found: Waterfall) -> list[Finding]:
    """Return a finding for each part that grew outside of the allocator."""
    return [_finding(found, name) for name in found.growth.grown]


def _finding(found: Waterfall, name: str) -> Finding:
    grown = found.growth.grown[name]
    evidence = {
        "time_ns": grown.time_ns,
        "largest_rise_bytes": grown.largest_rise_bytes,
        "reserved_growth_bytes": grown.inside_bytes,
        "still_there_bytes": grown.still_there_bytes,
        "step": grown.step,
    }
    at_step = "" if grown.step is None else f", at step {grown.step}"
    after = format_duration(grown.time_ns - int(found.time_ns[0]))
    return worded(_GROWN[name], grown.n_bytes, None, evidence, at_step=at_step, after=after)


PARTS_OF_RESERVED = ("requested", "rounding", "pending", "inactive_split", "releasable", "private_pools")


def reserved_parts(recording: Recording, counters: Counters) -> dict[str, Array]:
    """Return ``PARTS_OF_RESERVED`` and ``instant``, with one row per sample; −1 for what is not known."""
    found = _of_counters(counters)
    found["instant"] = np.full(len(counters), UNKNOWN)
    if not len(recording.trace) or not len(counters) or not recording.has_layout:
        return found
    instant = found["instant"] = _instants(recording, counters)
    rows = np.flatnonzero(instant >= 0)
    if len(rows):
        parts = parts_over_time(recording)
        for name in PARTS_OF_RESERVED:
            found[name][rows] = getattr(parts, f"{name}_bytes")[instant[rows]]
    return found


def _of_counters(counters: Counters) -> dict[str, Array]:
    allocated, active, requested = (counters.allocated_bytes, counters.active_bytes, counters.requested_bytes)
    reserved, split = counters.reserved_bytes, counters.inactive_split_bytes
    # Requests of pending blocks count as requested, but their blocks do not count as allocated.
    is_clear = (requested >= 0) & (active >= 0) & (active == allocated)
    has_all = (active >= 0) & (split >= 0) & (reserved >= 0)
    found = {
        "requested": np.where(is_clear, requested, UNKNOWN),
        "rounding": np.where(is_clear, allocated - requested, UNKNOWN),
        "pending": np.where((active >= 0) & (allocated >= 0), active - allocated, UNKNOWN),
        "inactive_split": np.where(has_all, split, UNKNOWN),
        "releasable": np.where(has_all, reserved - active - split, UNKNOWN),
    }
    return found | {"private_pools": np.full(len(counters), UNKNOWN)}


def _instants(recording: Recording, counters: Counters) -> Array:
    """Return the nearest instant at which all quantities equal the sample's; −1 if there is none."""
    levels = {name: level for name, level in timeline(recording).columns() if name != "time_ns"}
    times = np.maximum.accumulate(recording.trace.time_ns)
    near = np.searchsorted(times, counters.time_ns, side="right")
    known = np.where(counters.event >= 0, np.minimum(counters.event, len(times)), near)
    found = [instant_of_sample(counters, row, at, levels) for row, at in enumerate(known.tolist())]
    # A sample whose events the size cap removed has no instant, even if another one is equal by chance.
    is_past = (counters.time_ns < recording.initial.time_ns) & (recording.past.n_events > 0)
    return np.where(is_past, UNKNOWN, np.array(found, dtype="i8"))


ANALYSIS = asking("Where are all bytes of the device, torch's and others'?", waterfall, findings)
