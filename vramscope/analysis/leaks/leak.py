"""Memory that grows for one reason, and the finding that reports it."""

from dataclasses import asdict, dataclass
from typing import Any

from numpy.typing import NDArray

from vramscope.analysis.leaks.causes import CAUSES
from vramscope.analysis.leaks.holders import Statement
from vramscope.analysis.leaks.levels import LeakingLine
from vramscope.model.codes import FindingKind, LeakCause, Severity
from vramscope.model.equality import EqualByValue
from vramscope.model.finding import Finding
from vramscope.units import format_bytes

_MOST_LINES = 5


@dataclass(frozen=True, slots=True)
class Leak(EqualByValue):
    """Memory that grows for one reason."""

    cause: LeakCause
    """The mistake, or UNKNOWN."""
    holder: str | None
    """The variable that keeps it, as the program writes it; None if no search was made or it found none."""
    edit: str
    """The edit that ends the leak."""
    path: str | None
    """The whole path of references from a name to one of the blocks."""
    kept_at: Statement | None
    """The statement that keeps it; None if not known."""
    lines: tuple[LeakingLine, ...]
    """Lines that allocate it, the one with most bytes per step first."""
    bytes_per_step: float
    """Bytes that it grows by in each step."""
    n_bytes: int
    """Bytes grown since the first step compared."""
    first_step: int
    """Index of that step."""
    n_steps: int
    """Number of steps compared."""
    confidence: float
    """How steadily it grows, 0 to 1."""
    level_bytes: NDArray[Any]
    """Allocated bytes of its lines at every instant of ``Leaks.iteration_boundaries``."""
    rows: NDArray[Any]
    """Rows of ``lifetimes`` allocated since the first step compared and alive at the last."""
    has_steps: bool = True
    """Whether the steps are recorded, not inferred."""

    @property
    def finding(self) -> Finding:
        """The finding that reports it: a leak, or a growing batch, which is none."""
        is_batch = self.cause is LeakCause.GROWING_BATCH
        frame = self.lines[0].frame if self.lines else None
        return Finding(
            kind=FindingKind.GROWING_BATCH if is_batch else FindingKind.LEAK,
            severity=Severity.WARNING,
            claim=self._claim_of_a_batch() if is_batch else self._claim(),
            file=frame and frame.file,
            line=frame and frame.line,
            function=frame and frame.function,
            cause=self.cause,
            holder=self.holder,
            n_bytes=self.n_bytes,
            bytes_per_step=round(self.bytes_per_step),
            advice=self.edit,
            evidence=_evidence(self),
        )

    def _claim(self) -> str:
        variable = self.holder or "it"
        why = CAUSES[self.cause].format(holder=variable)
        steps = "step" if self.has_steps else "turn of the loop"
        claim = f"memory grows by {format_bytes(round(self.bytes_per_step))} a {steps}"
        kept = f" (`{self.kept_at.code}` in line {self.kept_at.line})" if self.kept_at else ""
        return f"{claim}: {why}{kept}" if why else f"{claim}{f'; {variable} keeps it' if self.holder else ''}"

    def _claim_of_a_batch(self) -> str:
        rate = format_bytes(round(self.bytes_per_step))
        return f"every step needs {rate} more than the one before: {CAUSES[self.cause]}, no leak"


def _evidence(leak: Leak) -> dict[str, Any]:
    return {
        "first_step": leak.first_step,
        "steps": leak.n_steps,
        "confidence": round(leak.confidence, 3),
        "blocks": len(leak.rows),
        "holder_path": leak.path,
        "kept_at": None if leak.kept_at is None else asdict(leak.kept_at),
        "lines": [
            {
                "file": each.frame and each.frame.file,
                "line": each.frame and each.frame.line,
                "function": each.frame and each.frame.function,
                "bytes_per_step": round(each.bytes_per_step),
                "in_backward": each.is_in_backward,
            }
            for each in leak.lines[:_MOST_LINES]
        ],
    }
