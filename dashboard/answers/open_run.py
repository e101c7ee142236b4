"""A run that is open, with the answers about its current version."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from threading import RLock
from time import monotonic, thread_time
from typing import Any

from vramscope import analysis
from vramscope.analysis.timeline import Totals, totals_of
from vramscope.errors import UnknownNameError, VramscopeError
from vramscope.model.recording import Outcome, Recording

from ..queries.precedence import Precedence
from ..runs import MAY_BE_WRITTEN, Follower, HurriedFollower, Pace, Stamp
from ..server.malloc_tuning import keeping
from .live import LiveRecording

_LOG = logging.getLogger(__name__)

MAX_ANSWERS = 64
_BEGUN = "what analyses begin with"
STALLED_S = 20
"""A running run without new events for this long counts as stalled."""


@dataclass(slots=True)
class OpenRun:
    """A run that is open. Derived values are cached by version, and dropped when the run grows."""

    follower: Follower
    lock: RLock = field(default_factory=RLock)
    version: int = 0
    changed_s: float = field(default_factory=monotonic)
    """When this process last saw something new in the files."""
    answers: OrderedDict[tuple[Hashable, Hashable], Any] = field(default_factory=OrderedDict)
    making: dict[Hashable, RLock] = field(default_factory=dict)
    """Locks, each held while its answer is computed."""
    live_recordings: dict[Hashable, LiveRecording] = field(default_factory=dict)
    """What grows, by rank and device, while the run is running."""
    refreshed_s: float = field(default_factory=monotonic)
    spent_s: float = 0.0
    """CPU seconds of the answers since the last refresh."""
    is_other: bool = False
    """Whether another run was at this path when it was opened before."""
    stamp: Stamp = ()
    """Stamp of the files when they were last read."""
    is_altered: bool = False
    """Whether its files changed after the run had ended, so that it was read again."""

    def is_due(self, pace: Pace) -> bool:
        """Return whether its files are to be looked at again."""
        pause_s = min(max(pace.refresh_s, self.spent_s / pace.share), pace.longest_s)
        return not self.version or monotonic() - self.refreshed_s >= pause_s

    def begin_refresh(self) -> None:
        """Begin a new time of answers."""
        self.refreshed_s, self.spent_s = monotonic(), 0.0

    def grow(self, stamp: Stamp) -> None:
        """Begin the next version, of files with that *stamp*."""
        self.version += 1
        self.changed_s, self.stamp = monotonic(), stamp
        self.answers.clear()
        if self.follower.run.outcome is not Outcome.RUNNING:
            self.live_recordings.clear()

    @property
    def stalled_s(self) -> int:
        """Seconds without new events of a running run, in multiples of STALLED_S; 0 below that."""
        if self.follower.run.outcome is not Outcome.RUNNING:
            return 0
        return int(monotonic() - self.changed_s) // STALLED_S * STALLED_S

    def was_altered(self, now: Stamp) -> bool:
        """Return whether the files of a run that has ended differ from those that were read."""
        return self.follower.run.outcome not in MAY_BE_WRITTEN and now != self.stamp

    def read_on(self) -> bool:
        """Read what was written since the last call; return whether there was anything."""
        try:
            return self.follower.refresh()
        except OSError as error:  # deleted this very moment
            raise UnknownNameError("This run can no longer be read: it is being moved or deleted.") from error

    def has(self, key: Hashable) -> bool:
        """Return whether the answer of a key is known."""
        with self.lock:
            return key in self.answers

    def analyzed(self, view_key: Hashable) -> dict[Callable[..., Any], Any]:
        """Return the answers of analyses without options that are known of a view, by their function."""
        with self.lock:
            kept = [*self.answers.items()]
        asked = [(what, found) for (of, what), found in kept if of == view_key and isinstance(what, tuple)]
        return {it.run: found for what, found in asked if len(what) == 1 and (it := analysis.find(what[0]))}

    def begun(self, view_key: Hashable, recording: Recording) -> dict[Any, tuple[Any, Any]]:
        """Return what analyses of a view begin with, as far as it was kept of this very recording."""
        with self.lock:
            of, known = self.answers.get((view_key, _BEGUN), (None, {}))
        return known if of is recording else {}

    def keep(self, view_key: Hashable, recording: Recording, known: dict[Any, tuple[Any, Any]]) -> None:
        """Keep what analyses of a view begin with."""
        if not known:
            return
        with self.lock:
            self.answers[view_key, _BEGUN] = recording, self.begun(view_key, recording) | known
            self.answers.move_to_end((view_key, _BEGUN))

    def derive(self, key: tuple[Hashable, Hashable], make: Callable[[], Any]) -> Any:
        """Return ``make()``, computed once per key; a thread that needs another value does not wait."""
        with self.lock:
            if key in self.answers:
                self.answers.move_to_end(key)
                return self.answers[key]
            making = self.making.setdefault(key, RLock())
        with making:
            with self.lock:
                if key in self.answers:
                    return self.answers[key]
            began = thread_time()
            made = make()
            with self.lock:
                self.spent_s += thread_time() - began
                self.answers[key] = made
                self.making.pop(key, None)
                while len(self.answers) > MAX_ANSWERS:
                    self.answers.popitem(last=False)
            return made

    def apart(self, make: Callable[[], Any]) -> Any:
        """Return ``make()``, whose time does not make refreshes rarer: it has a budget of its own."""
        before = self.spent_s
        made = make()
        self.spent_s = before
        return made

    def take_totals(self) -> tuple[Recording, Totals] | None:
        """Return the totals of a file that was read in a hurry, and their recording; only once."""
        if not isinstance(self.follower, HurriedFollower) or self.follower.levels is None:
            return None
        (recording, levels), self.follower.levels = self.follower.levels, None
        return recording, totals_of(recording, levels)

    def settle(self, precedence: Precedence) -> None:
        """Settle a file that was read in a hurry, once its first chart is shown."""
        precedence.until_quiet()
        try:
            if isinstance(self.follower, HurriedFollower):
                with keeping():
                    self.follower.settle()
        except (VramscopeError, OSError) as error:
            # The run is shown all the same; it is read again the next time.
            _LOG.warning("the conversion of a file was not cached: %s", error)
