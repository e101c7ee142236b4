"""One thing worth saying: the words every view shares."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """A claim with its evidence. None means: not known."""

    kind: str
    """``peak``, ``leak``, ``fragmentation``, ``oom``, …"""
    severity: str
    """``info``, ``warning`` or ``error``."""
    claim: str
    """One sentence, with its numbers."""
    file: str | None = None
    line: int | None = None
    function: str | None = None
    cause: str | None = None
    holder: str | None = None
    n_bytes: int | None = None
    bytes_per_step: int | None = None
    advice: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
