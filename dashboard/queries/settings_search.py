"""The background search of what would fit: its progress, its results so far, and how to stop it."""

import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from threading import Condition, Event, Lock, Thread
from time import monotonic
from weakref import WeakKeyDictionary

from vramscope.analysis.fit import FitProgress, Question, fit
from vramscope.analysis.fit.answer import FitAnswer, FitVerdict, Target
from vramscope.analysis.settings_advice import Candidate, SettingTrial, replayed
from vramscope.analysis.what_if import BETWEEN, ReplayResult, device_total, request_sequence
from vramscope.errors import VramscopeError
from vramscope.model.cards import CARDS
from vramscope.model.recording import Recording

from ..data import Data, View
from .precedence import let_others_go_first

_SHOWN = (
    "T4", "L4/A10G", "RTX 3090/4090", "RTX 5090", "A100 40 GB", "L40S", "A100/H100 80 GB", "H200",
    "B200",
)  # fmt: skip
_MOST_SEARCHES = 6
_STAGES = {
    "replaying": "Replaying the run as it is",
    "settings": "Trying settings",
    "cards": "Replaying on other cards",
    "batch": "Checking batch sizes",
    "strategies": "Checking strategies",
}
_LOG = logging.getLogger(__name__)


class SettingsSearch:
    """One search for what would fit, in a thread of its own.

    Between two replays it pauses where no page has asked about it for ``Pace.left_s`` seconds, and goes on
    with the next question.
    """

    def __init__(self, data: Data, view: View) -> None:
        self.view = view
        self.wanted: list[Candidate] = []
        self.trials: list[SettingTrial] = []
        """Finished trials, in the order of ``wanted``."""
        self.stage = "Reading what was recorded"
        self.fit: FitAnswer | None = None
        """The answer as far as it is known."""
        self.problem = ""
        self._data = data
        self._asked_s = monotonic()
        self._n_waiting = 0
        self._changed = Condition()
        self._stop = Event()
        self._done = Event()
        Thread(target=self._run, daemon=True, name="vramscope-fit").start()

    @property
    def is_done(self) -> bool:
        """Whether the search has ended: with a result, an error, or because it was stopped."""
        return self._done.is_set()

    @property
    def is_whole(self) -> bool:
        """Whether all settings were tried."""
        return len(self.trials) == len(self.wanted)

    def wait(self, at_most_s: float) -> bool:
        """Wait up to *at_most_s* seconds; return whether the search has ended."""
        return self._wait(lambda: self.is_done, at_most_s)

    def wait_for_recorded(self) -> None:
        """Wait for what the recording answers without a replay: 0.1 s per million events."""
        self._wait(lambda: self.fit is not None or self.is_done, None)

    def _wait(self, is_met: Callable[[], bool], at_most_s: float | None) -> bool:
        with self._changed:
            self._n_waiting += 1
            self._changed.notify_all()
            met = self._changed.wait_for(is_met, at_most_s)
            self._n_waiting -= 1
            self._asked_s = monotonic()
        return met

    def asked(self) -> None:
        """Note that a page shows the search, which goes on if it had paused."""
        with self._changed:
            self._asked_s = monotonic()
            self._changed.notify_all()

    def stop(self) -> None:
        """End the search after the running replay: some seconds for a million events."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()

    def _run(self) -> None:
        let_others_go_first()
        if self._is_long():  # a page waits for a short search, which must not rest for that page
            BETWEEN.set(self._data.precedence.resting())
        try:
            self._look(self.view.recording)
        except VramscopeError as error:
            self.problem = str(error)
        except Exception as error:  # noqa: BLE001 — shown on the page, as with any other page
            _LOG.exception("the search for a setting failed")
            self.problem = f"An error in vramscope: {type(error).__name__}. The server's log has more."
        finally:
            with self._changed:
                self._done.set()
                self._changed.notify_all()

    def _look(self, recording: Recording) -> None:
        progress = FitProgress(self._begin, self._play, self._learn)
        # Without a target the settings are compared on the recorded device.
        with self._data.sharing(self.view):
            answer = fit(recording, Question(has_own_target=False), progress)
        if answer.problem:
            self.problem = f"{answer.problem[:1].upper()}{answer.problem[1:]}."
            return
        self.stage = "Checking cards"
        advised = answer.settings.advised if answer.settings else None
        for _, _, size in devices(recording):
            verdict(self._data, self.view, answer, size, None)
            if advised:
                verdict(self._data, self.view, answer, size, advised)
        self._learn(answer)

    def _learn(self, answer: FitAnswer) -> None:
        with self._changed:
            self.fit = answer
            self._changed.notify_all()

    def _begin(self, stage: str) -> None:
        self._pause()
        self.stage = _STAGES.get(stage, self.stage)

    def _pause(self) -> None:
        """Wait while nobody looks: a replay slows down whatever else this machine does."""
        with self._changed:
            while not self._stop.is_set() and not self._is_looked_at():
                self._changed.wait()
        if self._is_long():
            self._data.precedence.until_quiet()  # even at rest most of the time, a replay delays a hand

    def _is_long(self) -> bool:
        return len(self.view.recording.trace) > self._data.pace.events_at_once

    def _is_looked_at(self) -> bool:
        return self._n_waiting > 0 or monotonic() - self._asked_s < self._data.pace.left_s

    def _play(
        self, trial: Callable[[Candidate], ReplayResult], wanted: Iterable[Candidate]
    ) -> Iterator[ReplayResult]:
        self.wanted = list(wanted)
        for candidate in self.wanted:
            self._pause()
            if self._stop.is_set():
                return
            self.stage = f"Trying {candidate.name}"
            outcome = trial(candidate)
            self.trials.append(SettingTrial(candidate, outcome))
            yield outcome


class SettingsSearches:
    """The latest searches of one dashboard, by recording."""

    def __init__(self, data: Data) -> None:
        self._data = data
        self._lock = Lock()
        self._known: OrderedDict[Hashable, SettingsSearch] = OrderedDict()

    def of(self, view: View, *, again: bool = False) -> SettingsSearch:
        """Return the search of this recording; start one where there is none.

        A search that is running goes on, even if the run has grown since.

        *again* starts one after a search that has ended, for example because it was stopped.
        """
        place = (view.run_id, *view.key[2:])
        with self._lock:
            known = self._known.get(place)
            is_old = known is not None and known.is_done and known.view.key != view.key
            if known is None or is_old or (again and known.is_done):
                known = self._known[place] = SettingsSearch(self._data, view)
            self._known.move_to_end(place)
            while len(self._known) > _MOST_SEARCHES:
                self._known.popitem(last=False)[1].stop()
        known.asked()
        return known


_OF: WeakKeyDictionary[Data, SettingsSearches] = WeakKeyDictionary()


def searches(data: Data) -> SettingsSearches:
    """Return the searches of the dashboard of *data*."""
    return _OF.setdefault(data, SettingsSearches(data))


def devices(recording: Recording) -> list[tuple[str, str, int]]:
    """Return key, name and bytes of the devices on the page: this device, where it is known, and cards."""
    cards = [(slug(card.label), card.label, card.total_bytes) for card in CARDS if card.name in _SHOWN]
    own = recording.device.total_bytes
    return [("this-device", "this device", own), *cards] if own else cards


def slug(text: str) -> str:
    """Return *text* as a word for an address."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40]


def target(answer: FitAnswer, total_bytes: int) -> Target:
    """Return the device of that size."""
    return Target("", total_bytes, is_own=total_bytes == answer.own_total_bytes)


def verdict(
    data: Data, view: View, answer: FitAnswer, total_bytes: int, trial: SettingTrial | None
) -> FitVerdict:
    """Return the verdict for a device; replays are kept with the other answers of the view."""
    candidate = trial.candidate if trial else None
    room = answer.room_on(target(answer, total_bytes))

    def made(recording: Recording) -> ReplayResult:
        both = room, device_total(recording, room, total_bytes)
        return replayed(request_sequence(recording), recording, both, candidate)

    def kept() -> ReplayResult:
        return data.derive(view, ("replayed", candidate, room, total_bytes), made)

    recorded = None if trial else answer.recorded_verdict(target(answer, total_bytes))
    free = trial.outcome if trial else answer.without_limit
    assert free is not None  # noqa: S101 - a whole answer without problem has one
    return recorded or answer.verdict_on(target(answer, total_bytes), free, kept)


def verdict_so_far(answer: FitAnswer, total_bytes: int) -> FitVerdict | None:
    """Return the verdict for a device with the recorded settings; None where it needs another replay."""
    device, free = target(answer, total_bytes), answer.without_limit
    recorded = answer.recorded_verdict(device)
    return recorded or (None if free is None else answer.verdict_by_bytes(device, free))
