"""The finding: one claim with its evidence, in the form that every view shares."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vramscope.model.stacks import Frame


@dataclass(frozen=True, slots=True)
class Finding:
    """One claim with its evidence; None marks what is unknown."""

    kind: str
    """A ``FindingKind``, or the word of an analysis of another distribution."""
    severity: str
    """A ``Severity``."""
    claim: str
    """One sentence, with its numbers."""
    file: str | None = None
    line: int | None = None
    function: str | None = None
    module: str | None = None
    """Path of the module that the line ran in: ``transformer.h.3.mlp``."""
    cause: str | None = None
    """A ``LeakCause``, or the cause of a failed allocation (``vramscope.analysis.oom.cause.Cause``)."""
    holder: str | None = None
    n_bytes: int | None = None
    bytes_per_step: int | None = None
    advice: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)


def placed(frame: Frame | None) -> dict[str, Any]:
    """Return the fields of a finding that name its line."""
    return {} if frame is None else {"file": frame.file, "line": frame.line, "function": frame.function}


class Located(NamedTuple):
    """A finding and the recording that it is about."""

    finding: Finding
    rank: int
    device: int
