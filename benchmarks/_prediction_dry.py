"""One program's prediction, for ``prediction.py``."""

from itertools import pairwise
from types import ModuleType
from typing import Any

from vramscope import predict
from vramscope.model.marks import Phase
from vramscope.prediction import Prediction
from vramscope.prediction.trial import DEFAULT_CARD, room_of

_MIB = 1 << 20


def answer(programs: ModuleType, program: str, variant: str) -> dict[str, Any]:
    """Return the predicted peaks in bytes, with their certainty."""
    found = predict(lambda: programs.train(program, variant), steps=None)
    return {
        "allocated": found.peak_allocated_bytes,
        "reserved": found.peak_reserved_bytes,
        "certainty": found.certainty,
        "reason": found.reasons[0] if found.reasons else "",
    }


def limits(programs: ModuleType, program: str, variant: str) -> dict[str, Any]:
    """Return the capacities in bytes that lie halfway between the peaks of two phases, smallest first."""
    found = predict(lambda: programs.train(program, variant), steps=None)
    peaks = found.recording.step_peaks()
    table = [
        peaks.outside.allocated_bytes.max(),
        *peaks.per_phase.allocated_bytes[peaks.per_phase.phase != Phase.OTHER],
    ]
    distinct = sorted({int(peak) for peak in table})
    # A limit on the border of a segment would decide by rounding.
    between = [(low + high) // 2 // _MIB * _MIB for low, high in pairwise(distinct) if high - low > 8 * _MIB]
    return {"limits": between}


def out_of_memory(programs: ModuleType, program: str, variant: str, limit_bytes: int) -> dict[str, Any]:
    """Return the operator and the line at which memory runs out on a card with so many bytes for torch."""
    capacity = limit_bytes + room_of(DEFAULT_CARD, None).context_bytes
    found = predict(lambda: programs.train(program, variant), steps=None, capacity=capacity)
    return _place(found)


def _place(found: Prediction) -> dict[str, Any]:
    point = found.out_of_memory_point
    if point is None:
        return {"operator": "", "line": 0, "phase": ""}
    return {"operator": point.operator, "line": point.frames[0][1], "phase": point.phase or ""}
