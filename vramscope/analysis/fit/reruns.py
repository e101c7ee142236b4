"""What-ifs that were run dry instead of estimated: their peaks, and whether they save anything."""

from dataclasses import dataclass
from enum import Enum


class Effect(str, Enum):
    """How a change moves the peak of allocated bytes."""

    SAVES = "saves"
    RAISES = "raises"
    NOTHING = "no effect"
    UNKNOWN = "cannot tell"
    """The ranges of both runs overlap, or nothing bounds them."""


@dataclass(frozen=True, slots=True)
class DryPeak:
    """What one dry run needed."""

    allocated_bytes: int
    """Peak of allocated bytes; a lower bound where ``most_bytes`` is None."""
    most_bytes: int | None
    """Upper bound of the peak of allocated bytes; None if nothing bounds it."""
    reserved_bytes: int
    """Peak of reserved bytes."""
    fits: bool | None
    """Whether it fits the requested device; None if not known or not asked."""
    certainty: str
    """``checked``, ``estimate`` or ``cannot_tell``."""
    reason: str = ""
    """The gravest reason why it is not ``checked``."""

    @property
    def is_close(self) -> bool:
        """Whether only a run on the device itself decides: the allocator may release its cache in time."""
        return self.fits is None and self.most_bytes is not None


@dataclass(frozen=True, slots=True)
class Rerun:
    """One what-if that was run dry, or could not be."""

    name: str
    how: str
    """What the author of the program would write."""
    peak: DryPeak | None = None
    """None if it could not be run; ``problem`` then says why."""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Reruns:
    """All what-ifs of one program."""

    command: str
    """The command that was run dry."""
    card: str
    capacity_bytes: int
    """Bytes of the device that ``fits`` is about."""
    plain: DryPeak | None = None
    """The program as it is, run dry; None if that is not possible."""
    rows: tuple[Rerun, ...] = ()
    problem: str = ""
    """Why nothing could be run dry; '' otherwise."""
    n_wanted: int = 0
    """Number of what-ifs; ``rows`` has fewer if the caller stopped them."""

    def effect(self, row: Rerun) -> Effect:
        """Return how *row* moves the peak of allocated bytes; a sign that may be wrong is not given."""
        before, after = self.plain, row.peak
        if before is None or after is None or before.most_bytes is None or after.most_bytes is None:
            return Effect.UNKNOWN
        if after.most_bytes < before.allocated_bytes:
            return Effect.SAVES
        if after.allocated_bytes > before.most_bytes:
            return Effect.RAISES
        is_same = before.allocated_bytes == before.most_bytes == after.allocated_bytes == after.most_bytes
        return Effect.NOTHING if is_same else Effect.UNKNOWN

    def saved_bytes(self, row: Rerun) -> int | None:
        """Return the bytes by which the peak falls, negative if it rises; None if the sign is not known."""
        if self.plain is None or row.peak is None or self.effect(row) is Effect.UNKNOWN:
            return None
        return self.plain.allocated_bytes - row.peak.allocated_bytes

    def answers(self, strategy: str) -> bool:
        """Return whether a what-if says what *strategy* does, so that nothing has to be estimated."""
        known = [row for row in self.rows if self.effect(row) is not Effect.UNKNOWN]
        return any(strategy == row.name or strategy.startswith(f"{row.name} ") for row in known)


def differs_from_recorded(found: Reruns, recorded_bytes: int) -> float | None:
    """Return by which share the dry run of the program as it is differs from the recorded peak."""
    if found.plain is None or not recorded_bytes:
        return None
    return found.plain.allocated_bytes / recorded_bytes - 1
