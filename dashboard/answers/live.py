"""Answers about a recording that grows: an update costs only the events since the last one."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np

from vramscope.analysis import analyses
from vramscope.analysis.by_stack import StackBytes, stack_bytes
from vramscope.analysis.findings import collect
from vramscope.analysis.lifetimes import lifetimes
from vramscope.analysis.shared_results import shared_results
from vramscope.analysis.timeline import Totals
from vramscope.columns import GrowingColumn
from vramscope.columns.scratch import Scratch
from vramscope.following.growing import AT_ONCE, Following
from vramscope.model.recording import Recording
from vramscope.model.snapshot import Snapshot

from ..figures.drawing.series import (
    EVENTS,
    Ruler,
    SeriesParts,
    has_clock,
    instants,
    origin_ns,
    phase_columns,
    spans,
    step_columns,
)
from ..queries.findings_process import FindingsProcess, LatestFindings
from .finished import Answers
from .lagging import OF_ANALYSES, Lag, LaggingAnswers

if TYPE_CHECKING:
    from ..data import Data, View

MOST_KEPT = 12
_OF_FINDINGS = Lag(longer=1.0, share=0.05)
_OF_FINDINGS_APART = Lag(longer=1.0, share=0.2, longest_s=15.0, meanwhile=LatestFindings([], 0))
"""A search takes 0.35 s per million events, of another core: at ten million the findings lag by 20 s."""


class LiveRecording:
    """What grows with one recording, drawn. Several threads may use it, one with an older version.

    What grows is kept in *scratch*, in memory where None; at most *at_once* new events are taken at once.
    """

    def __init__(
        self, recording: Recording, scratch: Scratch | None = None, *, at_once: int = AT_ONCE
    ) -> None:
        self._lock = RLock()
        self._scratch = scratch.growing() if scratch is not None else None
        self._at_once = at_once
        self.lagging = LaggingAnswers()
        self._search: FindingsProcess | None = None
        self._following = Following(recording, scratch, at_once=at_once)
        self._begin()

    @contextmanager
    def following(self, recording: Recording) -> Iterator[Following]:
        """Yield what follows the recording, which no other thread changes meanwhile."""
        with self._lock:
            self._follow(recording)
            yield self._following

    def totals(self, recording: Recording) -> Totals:
        """Return what the analysis ``timeline`` of the recording returns."""
        with self.following(recording) as following:
            return following.totals(recording)

    def stacks_at(self, recording: Recording, instant: int) -> StackBytes:
        """Return what the analysis ``by_stack`` of the recording returns at *instant*."""
        with self.following(recording) as following:
            state = following.state_at(recording, instant)
        found = stack_bytes(lifetimes(Recording(initial=state)), 0)
        return StackBytes(**dict(found.columns()), instant=instant)

    def ruler(self, recording: Recording, axis: str) -> Ruler:
        """Return what ``series.ruler`` of the recording returns."""
        known = self.totals(recording)
        axis = axis if has_clock(recording) else EVENTS
        origin = origin_ns(recording, known)
        with self._lock:
            n_instants = len(known.time_ns)
            in_order = known.time_ns if not len(self._in_order_ns) else self._in_order_ns.view()[:n_instants]
            placed = self._placed(axis, origin)
            for end in range(len(placed) + self._at_once, len(in_order) + self._at_once, self._at_once):
                placed.extend(instants(axis, origin, in_order[:end], len(placed)))
            return Ruler(axis, in_order, origin, placed.view()[: len(in_order)])

    def kept(self, what: Hashable, make: Callable[[], Any]) -> Any:
        """Return a cached value that does not change while the recording grows."""
        with self._lock:
            if what in self._kept:
                self._kept.move_to_end(what)
                return self._kept[what]
            made = self._kept[what] = make()
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
            return made

    def search(self, path: Path, recording: Recording) -> FindingsProcess:
        """Return the process that searches the recording, which is in the run at *path*."""
        with self._lock:
            self._search = self._search or FindingsProcess(path, recording)
            return self._search

    def _begin(self) -> None:
        self._n_ordered = 0
        """The instants whose times were looked at."""
        self._in_order_ns = GrowingColumn("i8", self._scratch)
        """The times as the axis has them, none before another; empty while they are in order."""
        self._positions: dict[str, tuple[int, GrowingColumn]] = {}
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()

    def _follow(self, recording: Recording) -> None:
        n_before = len(self._following)
        if not self._following.follow(recording):
            self._begin()
        if len(self._following) == n_before and self._n_ordered:
            return
        time_ns = self._following.totals(recording).time_ns
        n_known, new = len(self._in_order_ns), time_ns[max(self._n_ordered - 1, 0) :]
        if n_known or not (new[1:] >= new[:-1]).all():
            later = time_ns[n_known:].copy()
            later[:1] = max(later[0], self._in_order_ns.view()[-1]) if n_known else later[0]
            self._in_order_ns.extend(np.maximum.accumulate(later))
        self._n_ordered = len(time_ns)

    def _placed(self, axis: str, origin: int) -> GrowingColumn:
        """Return the positions so far; empty where the axis now begins elsewhere."""
        known = self._positions.get(axis)
        if known is None or known[0] != origin:
            known = self._positions[axis] = origin, GrowingColumn("f8", self._scratch)
        return known[1]


class LiveAnswers(Answers):
    """The answers about one version of a recording that grows."""

    def __init__(
        self, data: "Data", view: "View", growing: LiveRecording, apart: Callable[[Callable[[], Any]], Any]
    ) -> None:
        """Answer about *view* from what is *growing*; *apart* calls what has a budget of its own."""
        self._data, self._view, self._growing, self._apart = data, view, growing, apart
        self._recording = view.recording

    def totals(self) -> Totals:
        """Return torch's four totals at every instant."""
        return self._growing.totals(self._recording)

    def fullest(self, quantity: str) -> int:
        """Return the first instant of the most *quantity*."""
        with self._growing.following(self._recording) as following:
            return following.fullest(self._recording, quantity)

    def last_oom(self) -> int:
        """Return the event of the last allocation that raised OutOfMemoryError; −1 where none did."""
        with self._growing.following(self._recording) as following:
            return following.last_oom(self._recording)

    def parts_of_series(self, axis: str) -> SeriesParts:
        """Return the parts of what the timeline draws on *axis*."""
        growing, recording = self._growing, self._recording
        with growing.following(recording) as following:
            retries = following.retries(recording)
        placed = growing.ruler(recording, axis)
        phases, steps = (spans(*of(recording), placed) for of in (phase_columns, step_columns))
        return SeriesParts(placed, retries, phases, steps)

    def stacks_at(self, instant: int) -> StackBytes:
        """Return the live bytes at an instant by call stack."""
        return self._growing.stacks_at(self._recording, instant)

    def state_at(self, instant: int) -> Snapshot:
        """Return segments and blocks at an instant."""
        with self._growing.following(self._recording) as following:
            return following.state_at(self._recording, instant)

    def kept(self, what: Hashable, make: Callable[[], Any]) -> Any:
        """Return ``make()``, computed once: the value stays the same while the recording grows."""
        return self._growing.kept(what, make)

    def lagging(self, what: Hashable, make: Callable[[], Any], lag: Lag = OF_ANALYSES) -> Any:
        """Return ``make()`` of this version or of an earlier one."""
        return self._growing.lagging.ask(what, self._recording, lambda: self._apart(make), lag)

    def findings(self) -> LatestFindings:
        """Return the findings of this version or of one some seconds ago; long runs are searched apart."""
        found: LatestFindings
        search = self._search()
        if search is None:
            found = self.lagging("findings", self._searched, _OF_FINDINGS)
        else:
            lag = _OF_FINDINGS_APART._replace(clock=lambda: search.spent_s)
            found = self.lagging("findings", lambda: search.search() or self._searched(), lag)
        return found

    def _search(self) -> FindingsProcess | None:
        """Return the process that searches this recording; None for a short one, or one in a store."""
        path = FindingsProcess.path(self._data, self._view)
        return None if path is None else self._growing.search(path, self._recording)

    def _searched(self) -> LatestFindings:
        offered = analyses()
        # Not cached: the next version needs others, and all together they are large.
        with shared_results():
            found = collect(lambda name: offered[name].run(self._recording))
        return LatestFindings(found, len(self._recording.trace))
