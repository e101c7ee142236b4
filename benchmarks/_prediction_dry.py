"""One program's prediction, for ``prediction.py``."""

from types import ModuleType
from typing import Any

from vramscope import predict


def answer(programs: ModuleType, program: str, variant: str) -> dict[str, Any]:
    found = predict(lambda: programs.train(program, variant), steps=None)
    return {
        "allocated": found.peak_allocated_bytes,
        "reserved": found.peak_reserved_bytes,
        "certainty": found.certainty,
        "reason": found.reasons[0] if found.reasons else "",
    }
