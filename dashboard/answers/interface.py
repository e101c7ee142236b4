"""What pages ask of a recording; one that grows and one that is finished answer the same questions."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from vramscope.analysis.by_stack import StackBytes
from vramscope.analysis.timeline import Totals
from vramscope.model.finding import Finding
from vramscope.model.snapshot import Snapshot

from ..figures.drawing.series import SeriesParts


class LatestFindings(NamedTuple):
    """The findings of all analyses but the peak, most severe first, and the instant they refer to."""

    findings: list[Finding]
    instant: int
    """Instant up to which they hold: those of a live run lag by some seconds."""


class Answers(ABC):
    """The answers about one version of a recording."""

    @abstractmethod
    def totals(self) -> Totals:
        """Return torch's four totals at every instant."""

    @abstractmethod
    def fullest(self, quantity: str) -> int:
        """Return the first instant of the most *quantity*."""

    @abstractmethod
    def last_oom(self) -> int:
        """Return the event of the last allocation that raised OutOfMemoryError; −1 where none did."""

    @abstractmethod
    def parts_of_series(self, axis: str) -> SeriesParts:
        """Return the parts of what the timeline draws on *axis*."""

    @abstractmethod
    def stacks_at(self, instant: int) -> StackBytes:
        """Return the live bytes at an instant by call stack."""

    @abstractmethod
    def state_at(self, instant: int) -> Snapshot:
        """Return segments and blocks at an instant."""

    @abstractmethod
    def kept(self, what: Hashable, make: Callable[[], Any]) -> Any:
        """Return ``make()``, computed once: the value stays the same while the recording grows."""

    @abstractmethod
    def lagging(self, what: Hashable, make: Callable[[], Any], /) -> Any:
        """Return ``make()`` of the whole recording; where it grows, that of an earlier version may do."""

    @abstractmethod
    def findings(self) -> LatestFindings:
        """Return the findings of all analyses but the peak, which every page shows."""
