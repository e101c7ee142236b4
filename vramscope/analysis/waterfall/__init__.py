"""Where is the rest? All bytes of the device at each sample: tensors, torch's cache, what lies outside."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis import Analysis
from vramscope.analysis.waterfall.outside_growth import (
    Growth,
    growth_of,
)
from vramscope.analysis.waterfall.sampled_parts import (
    PARTS_OF_RESERVED,
    reserved_parts,
)
from vramscope.model.codes import FindingKind, NoteCode, Severity
from vramscope.model.counters import UNKNOWN, Counters
from vramscope.model.finding import Finding
from vramscope.model.recording import Recording
from vramscope.model.table import Table
from vramscope.units import format_bytes, format_duration

_EVENTS = "the allocator's events"
_COUNTERS = "torch's counters"
_DRIVER = "NVML"
_DIFFERENCE = "NVML less torch's counters"
_NO_DRIVER = "not available: nobody asked the driver, or it did not answer"


@dataclass(frozen=True, slots=True)
class Bar:
    """One part of the device's memory at a sample."""

    name: str
    n_bytes: int | None
    """None where it is not known; then a bar over several parts may be."""
    source: str
    """Who says so; or the reason why nobody does."""


@dataclass(frozen=True, slots=True)
class Waterfall(Table):
    """One row per sample, in bytes; −1 where not known.

    From ``requested`` to ``private_pools`` the parts sum up to ``reserved``, with ``own_outside``, ``others``
    and ``unattributed`` to ``used``, with ``free`` and ``driver`` to ``total``.
    """

    DTYPES: ClassVar = {
        "time_ns": "i8",
        "instant": "i8",
        "requested": "i8",
        "rounding": "i8",
        "pending": "i8",
        "inactive_split": "i8",
        "releasable": "i8",
        "private_pools": "i8",
        "own_outside": "i8",
        "others": "i8",
        "unattributed": "i8",
        "free": "i8",
        "driver": "i8",
        "allocated": "i8",
        "reserved": "i8",
        "used": "i8",
        "total": "i8",
        "drift": "i8",
    }

    time_ns: NDArray[Any]
    instant: NDArray[Any]
    """Of the trace, where all four quantities were what the sample says; −1 where there is none near it."""
    requested: NDArray[Any]
    """Live tensors."""
    rounding: NDArray[Any]
    """What their blocks are larger."""
    pending: NDArray[Any]
    """Freed, but waiting for another stream."""
    inactive_split: NDArray[Any]
    """Cached: free pieces of segments in use."""
    releasable: NDArray[Any]
    """Cached: segments wholly free."""
    private_pools: NDArray[Any]
    """Free bytes of private pools (CUDA graphs', MemPools'), which serve nobody else; −1: they are among the
    two before."""
    own_outside: NDArray[Any]
    """This process outside of torch's allocator: CUDA's context, libraries, NCCL, raw cudaMalloc."""
    others: NDArray[Any]
    """Other processes."""
    unattributed: NDArray[Any]
    """Used on the device, and of no process that the driver lists."""
    free: NDArray[Any]
    driver: NDArray[Any]
    """The driver's own reserve: neither used nor free."""
    allocated: NDArray[Any]
    reserved: NDArray[Any]
    used: NDArray[Any]
    total: NDArray[Any]
    drift: NDArray[Any]
    """By how much ``reserved`` moved while the driver was asked: ``own_outside`` may be wrong by that."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why a part is not available, by its name."""
    growth: Growth = field(default_factory=Growth)
    """Which parts outside of the allocator grew, and when."""

    @property
    def fullest(self) -> int:
        """The row where most of the device is used; where the driver told nothing, most is reserved."""
        level = self.used if (self.used >= 0).any() else self.reserved
        return int(level.argmax())

    @property
    def last(self) -> int:
        """The last row in which the driver told something, if any did."""
        known = np.flatnonzero(self.used >= 0)
        return int(known[-1]) if len(known) else len(self) - 1

    def bars(self, row: int) -> tuple[Bar, ...]:
        """Every part at a sample; those with a number sum up to the total, or to what is known of it."""
        of = {name: int(column[row]) for name, column in self.columns()}
        return (*self._inside(of), *self._outside(of))

    def _inside(self, of: Mapping[str, int]) -> list[Bar]:
        source = _EVENTS if of["instant"] >= 0 else _COUNTERS
        found = [self._bar(of, name, source) for name in PARTS_OF_RESERVED]
        if of["requested"] < 0 <= of["allocated"]:
            found.insert(2, Bar("allocated", of["allocated"], _COUNTERS))
        return found

    def _outside(self, of: Mapping[str, int]) -> list[Bar]:
        names = ("own_outside", "others", "unattributed")
        found = [self._bar(of, name, _DIFFERENCE if name == "own_outside" else _DRIVER) for name in names]
        if min(of["own_outside"], of["others"]) < 0 <= of["used"]:
            known = max(of["reserved"], 0) + sum(max(of[name], 0) for name in names)
            found.append(Bar("outside", max(of["used"] - known, 0), _DIFFERENCE))
        return [*found, self._bar(of, "free", _DRIVER), self._bar(of, "driver", _DRIVER)]

    def _bar(self, of: Mapping[str, int], name: str, source: str) -> Bar:
        if of[name] >= 0:
            return Bar(name, of[name], source)
        return Bar(name, None, self.reasons.get(name, _NO_DRIVER))


def waterfall(recording: Recording) -> Waterfall:
    """At every sample; parts inside of the allocator cost 1 s per million events."""
    counters = recording.counters
    has_driver = counters.device_used_bytes >= 0
    # Where the driver is asked, samples of torch's counters alone (at phases) lack half of the bars.
    counters = counters.rows(has_driver if has_driver.any() else counters.reserved_bytes >= 0)
    inside = reserved_parts(recording, counters)
    outside = _outside_parts(counters)
    columns = {
        "time_ns": counters.time_ns,
        **inside,
        **outside,
        "allocated": counters.allocated_bytes,
        "reserved": counters.reserved_bytes,
        "used": counters.device_used_bytes,
        "total": counters.device_total_bytes,
        "drift": counters.reserved_drift_bytes,
    }
    growth = growth_of(recording, columns)
    return Waterfall.of(**columns, reasons=_reasons(recording, columns), growth=growth)


def _outside_parts(counters: Counters) -> dict[str, NDArray[Any]]:
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
        # A driver, or a trace, that tells no free bytes tells no reserve either.
        "free": np.where(free >= 0, free, _where((total >= 0) & (used >= 0), total - used)),
        "driver": _where((free >= 0) & (used >= 0) & (total >= 0), total - used - free),
    }


def _where(is_known: NDArray[Any], value: NDArray[Any]) -> NDArray[Any]:
    """*value* where known: never below 0, as two questions a moment apart may make it."""
    return np.where(is_known, np.maximum(value, 0), UNKNOWN)


def _reasons(recording: Recording, columns: Mapping[str, NDArray[Any]]) -> dict[str, str]:
    notes = {note.code: note.text for note in recording.notes}
    told = next(
        (
            notes[code]
            for code in (NoteCode.NVML_DEVICE, NoteCode.NVML_PROCESS, NoteCode.NVML_PROCESS_MEMORY)
            if code in notes
        ),
        None,
    )
    if not len(columns["used"]):
        return {}
    whole = notes.get(NoteCode.NVML_DEVICE)
    waits = "not available: blocks wait for other streams, and torch's counter mixes their requests in"
    no_events = "not available: only the allocator's events tell pools; such bytes count as cached"
    reasons = {"requested": waits, "rounding": waits, "private_pools": no_events}
    if told is not None:
        reasons |= dict.fromkeys(("own_outside", "others", "unattributed"), f"not available: {told}")
    if whole is not None:
        reasons |= dict.fromkeys(("free", "driver"), f"not available: {whole}")
    return reasons


_GROWN = {
    "own_outside": (
        FindingKind.NON_TORCH_GROWTH,
        "this process outside of torch's allocator",
        "Libraries, NCCL buffers, CUDA graphs or raw cudaMalloc; no tensor is the reason",
    ),
    "others": (FindingKind.OTHER_PROCESS, "other processes", "nvidia-smi shows which processes hold it"),
    "outside": (
        FindingKind.OUTSIDE_GROWTH,
        "the device outside of torch's allocator (this process or others: the driver does not tell)",
        "nvidia-smi on the host shows which process holds it",
    ),
}


def findings(found: Waterfall) -> list[Finding]:
    """What grew outside of the allocator."""
    return [_finding(found, name) for name in found.growth.grown]


def _finding(found: Waterfall, name: str) -> Finding:
    kind, whose, advice = _GROWN[name]
    grown = found.growth.grown[name]
    step = "" if grown.step is None else f", at step {grown.step}"
    after = format_duration(grown.time_ns - int(found.time_ns[0]))
    return Finding(
        kind,
        Severity.WARNING,
        f"Memory of {whose} grew by {format_bytes(grown.n_bytes)}, {format_bytes(grown.largest_rise)} of it "
        f"at once {after} after the first sample{step}; torch's reserved bytes changed by "
        f"{format_bytes(grown.inside_bytes)} meanwhile",
        advice=advice,
        n_bytes=grown.n_bytes,
        evidence={
            "time_ns": grown.time_ns,
            "largest_rise_bytes": grown.largest_rise,
            "reserved_growth_bytes": grown.inside_bytes,
            "still_there_bytes": grown.still_there,
            "step": grown.step,
        },
    )


ANALYSIS = Analysis(
    "waterfall", "Where are all bytes of the device, torch's and others'?", waterfall, findings
)
