"""What pages ask of a recording, answered from the whole of a finished one; ``live`` answers the same."""

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import numpy as np

from vramscope.allocator.state_index import StateIndex
from vramscope.analysis.by_stack import StackBytes, stack_bytes
from vramscope.analysis.findings import collect
from vramscope.analysis.timeline import Totals
from vramscope.model.snapshot import Snapshot
from vramscope.model.table import first_greatest
from vramscope.model.trace import Action

from ..figures.drawing.series import SeriesParts, parts_of
from ..queries.findings_process import LatestFindings
from .lagging import OF_ANALYSES, Lag

if TYPE_CHECKING:
    from ..data import Data, View


class Answers:
    """The answers about one version of a recording, here of the last one."""

    def __init__(self, data: "Data", view: "View") -> None:
        self._data, self._view = data, view

    def totals(self) -> Totals:
        """Return torch's four totals at every instant."""
        return self._data.ask(self._view, "timeline")

    def fullest(self, quantity: str) -> int:
        """Return the first instant of the most *quantity*."""
        level = getattr(self.totals(), f"{quantity}_bytes")
        return self.kept(("fullest", quantity), lambda: first_greatest(level))

    def last_oom(self) -> int:
        """Return the event of the last allocation that raised OutOfMemoryError; −1 where none did."""
        return int(np.flatnonzero(self._view.recording.trace.action == Action.OOM).max(initial=-1))

    def parts_of_series(self, axis: str) -> SeriesParts:
        """Return the parts of what the timeline draws on *axis*."""
        return parts_of(self._view.recording, self.totals(), axis)

    def stacks_at(self, instant: int) -> StackBytes:
        """Return the live bytes at an instant by call stack."""
        return stack_bytes(self._data.ask(self._view, "lifetimes"), instant)

    def state_at(self, instant: int) -> Snapshot:
        """Return segments and blocks at an instant."""
        trace, initial = self._view.recording.trace, self._view.recording.initial
        index: StateIndex = self.kept("states", lambda: StateIndex(trace, initial))
        return index.at(instant)

    def kept(self, what: Hashable, make: Callable[[], Any]) -> Any:
        """Return ``make()``, computed once: the value stays the same while the recording grows."""
        return self._data.derive(self._view, what, lambda _: make())

    def lagging(self, _: Hashable, make: Callable[[], Any], lag: Lag = OF_ANALYSES) -> Any:  # noqa: ARG002
        """Return ``make()`` of the whole recording; where it grows, that of an earlier version may do."""
        return make()

    def findings(self) -> LatestFindings:
        """Return the findings of all analyses but the peak, which every page shows."""
        return self.kept("findings", self._searched)

    def _searched(self) -> LatestFindings:
        found = collect(lambda name: self._data.ask(self._view, name))
        return LatestFindings(found, len(self._view.recording.trace))
