"""The finding: one claim with its evidence, in the form that every view shares."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class Severity(str, Enum):
    """How severe a finding is, the most severe first."""

    ERROR = "error"
    """The program failed because of it."""
    WARNING = "warning"
    """It costs memory or time, and something can be done."""
    INFO = "info"


class FindingKind(str, Enum):
    """What a finding is about; analyses of other distributions may add their own kinds."""

    OOM = "oom"
    LEAK = "leak"
    GROWING_BATCH = "growing_batch"
    CACHE_GROWTH = "cache_growth"
    OUTSIDE_GROWTH = "outside_growth"
    NON_TORCH_GROWTH = "non_torch_growth"
    OTHER_PROCESS = "other_process"
    FRAGMENTATION = "fragmentation"
    PEAK = "peak"


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
