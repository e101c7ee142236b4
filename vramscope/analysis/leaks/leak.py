"""Memory that grows for one reason, and the finding that reports it."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from vramscope.analysis.leaks.causes import CAUSES
from vramscope.analysis.leaks.holders import Bound, KeptView, Statement, line_words
from vramscope.analysis.leaks.levels import LeakingLine
from vramscope.model.codes import FindingKind, LeakCause, Severity
from vramscope.model.finding import Finding, placed
from vramscope.model.table import Array, EqualByValue
from vramscope.units import format_bytes

_MOST_LINES = 5
_OF_BUFFERS = "where that is too much, lower the bound, or keep what goes in on the CPU until a step reads it"
_SUMMED = ("bytes_per_step", "n_bytes", "level_bytes")


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
    view: KeptView | None
    """The small view for which each block of it stays; None where it stays for more."""
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
    level_bytes: Array
    """Allocated bytes of its lines at every instant of ``Leaks.iteration_boundaries``."""
    rows: Array
    """Rows of ``lifetimes`` allocated since the first step compared and alive at the last."""
    has_steps: bool = True
    """Whether the steps are recorded, not inferred."""
    bound: Bound | None = None
    """The bound of the container that keeps it; None if none is known."""
    is_filling: bool = False
    """Whether it fills a buffer that has not come to its bound: no leak."""
    bytes_per_item: float = 0.0
    """Bytes of one item of that container; 0 if not known."""
    n_others: int = 0
    """Further holders that the same statement fills."""

    def joined(self, other: "Leak") -> "Leak":
        """Return this leak with the bytes of *other*, which the same statement keeps by another holder."""
        lines = sorted((*self.lines, *other.lines), key=lambda each: -each.bytes_per_step)
        rows = np.union1d(self.rows, other.rows)
        sums = {name: getattr(self, name) + getattr(other, name) for name in _SUMMED}
        return replace(self, lines=tuple(lines), rows=rows, n_others=self.n_others + 1, **sums)

    @property
    def bytes_when_full(self) -> int | None:
        """Bytes that it keeps when its container is full; None if that is not known."""
        known = self.bound is not None and self.bound.n_items and self.bytes_per_item
        return round(self.bytes_per_item * self.bound.n_items) if known and self.bound else None

    def has_bound_below(self, total_bytes: int) -> bool:
        """Whether it fills a buffer whose bound is not passed, nor beyond a device of *total_bytes*."""
        full = self.bytes_when_full
        if self.bound is None or full is None:
            return self.bound is not None
        # What the line keeps from its first call on, as a workspace, is none of the buffer.
        is_passed = self.level_bytes[-1] - self.level_bytes[0] > full + self.bytes_per_item
        return not is_passed and (not total_bytes or full < total_bytes)

    @property
    def finding(self) -> Finding:
        """The finding that reports it: a leak, or a growing batch, which is none."""
        frame = self.lines[0].frame if self.lines else None
        kind, severity, claim = self._kind_and_claim()
        return Finding(
            kind=kind,
            severity=severity,
            claim=claim,
            **placed(frame),
            cause=self.cause,
            holder=self.holder,
            n_bytes=self.n_bytes,
            bytes_per_step=round(self.bytes_per_step),
            advice=self.edit if kind is not FindingKind.FILLING_BUFFER else _OF_BUFFERS,
            evidence=_evidence(self),
        )

    def _kind_and_claim(self) -> tuple[FindingKind, Severity, str]:
        if self.cause is LeakCause.GROWING_BATCH:
            rate = format_bytes(round(self.bytes_per_step))
            claim = f"every step needs {rate} more than the one before: {CAUSES[self.cause]}, no leak"
            return FindingKind.GROWING_BATCH, Severity.WARNING, claim
        if self.is_filling and self.bound is not None:
            return FindingKind.FILLING_BUFFER, Severity.INFO, self._claim_of_a_buffer(self.bound)
        return FindingKind.LEAK, Severity.WARNING, self._claim()

    def _claim(self) -> str:
        variable = self.holder or "it"
        why = CAUSES[self.cause].format(holder=variable).removesuffix(", in it")
        steps = "step" if self.has_steps else "turn of the loop"
        claim = f"memory grows by {format_bytes(round(self.bytes_per_step))} a {steps}"
        kept, at = "", self.kept_at
        if at is not None:
            places = [each.frame[1:] for each in self.lines[:1] if each.frame]
            others = f", as {self.n_others} others do" if self.n_others > 1 else ", as another one does"
            where = line_words(at.file, at.line, [file for file, _ in places] or [at.file])
            # The finding's own place stands beside its claim.
            where = "" if (at.file, at.line) in places else f" in {where}"
            kept = f"{others if self.n_others else ''} (`{at.code}`{where})"
        if not why:
            return f"{claim}{f'; {variable} keeps it' if self.holder else ''}"
        return f"{claim}: {why}{kept}{'' if self.view is None else _claim_of_a_view(self.view)}"

    def _claim_of_a_buffer(self, bound: Bound) -> str:
        full = self.bytes_when_full
        then = "" if full is None else f", with {format_bytes(full)} then"
        most = f"at {bound.n_items:,} items ({bound.text}){then}" if bound.n_items else f"by {bound.text}"
        rate = format_bytes(round(self.bytes_per_step))
        return f"{self.holder or 'a buffer'} still fills, by {rate} a step, and is bounded {most}: no leak"


def _claim_of_a_view(view: KeptView) -> str:
    kept, whole = format_bytes(view.n_bytes), format_bytes(view.storage_bytes)
    what = f"a view of shape {view.shape} ({kept}) keeps" if view.shape else f"views of {kept} in all keep"
    return f"; {what} {whole} allocated"


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
