"""The background search for an allocator setting: its progress, its result, and how to stop it."""

import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from threading import Event, Lock, Thread
from weakref import WeakKeyDictionary

from vramscope.analysis.fit import FitAnswer, FitProgress, FitVerdict, Question, Target, fit
from vramscope.analysis.fit.cards import CARDS
from vramscope.analysis.settings_advice import Candidate, SettingTrial
from vramscope.analysis.what_if import ReplayResult
from vramscope.errors import VramscopeError
from vramscope.model.recording import Recording

from ..data import Data, View

_SHOWN = (
    "T4",
    "L4/A10G",
    "RTX 3090/4090",
    "RTX 5090",
    "A100 40 GB",
    "L40S",
    "A100/H100 80 GB",
    "H200",
    "B200",
)
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
    """One search for a setting, in a thread of its own."""

    def __init__(self, data: Data, view: View) -> None:
        self.view = view
        self.wanted: list[Candidate] = []
        self.trials: list[SettingTrial] = []
        """Finished trials, in the order of ``wanted``."""
        self.stage = "Replaying the run as it is"
        self.fit: FitAnswer | None = None
        self.problem = ""
        self._data = data
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
        return self._done.wait(at_most_s)

    def stop(self) -> None:
        """End the search after the running replay: some seconds for a million events."""
        self._stop.set()

    def _run(self) -> None:
        try:
            self._look(self.view.recording)
        except VramscopeError as error:
            self.problem = str(error)
        except Exception as error:  # noqa: BLE001 — shown on the page, as with any other page
            _LOG.exception("the search for a setting failed")
            self.problem = f"An error in vramscope: {type(error).__name__}. The server's log has more."
        finally:
            self._done.set()

    def _look(self, recording: Recording) -> None:
        # Without a target the settings are compared on the recorded device.
        answer = fit(recording, Question(has_own_target=False), FitProgress(self._begin, self._play))
        if answer.problem:
            self.problem = f"{answer.problem[:1].upper()}{answer.problem[1:]}."
            return
        self.stage = "Checking cards"
        advised = answer.settings.advised if answer.settings else None
        for _, _, size in devices(recording):
            verdict(self._data, self.view, answer, size, None)
            if advised:
                verdict(self._data, self.view, answer, size, advised)
        self.fit = answer

    def _begin(self, stage: str) -> None:
        self.stage = _STAGES.get(stage, self.stage)

    def _play(
        self, trial: Callable[[Candidate], ReplayResult], wanted: Iterable[Candidate]
    ) -> Iterator[ReplayResult]:
        self.wanted = list(wanted)
        for candidate in self.wanted:
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

        Parameters
        ----------
        view
            The recording.
        again
            Whether to start again after a search that has ended, for example because it was stopped.
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
            return known


_OF: WeakKeyDictionary[Data, SettingsSearches] = WeakKeyDictionary()


def searches(data: Data) -> SettingsSearches:
    """Return the searches of the dashboard of *data*."""
    return _OF.setdefault(data, SettingsSearches(data))


# ---------------------------------------------------------------------------------------- the card


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

    def replayed() -> ReplayResult:
        found: ReplayResult = data.ask(
            view,
            "what_if",
            conf=trial.candidate.conf if trial else None,
            capacity_bytes=answer.room_on(target(answer, total_bytes)),
            empty_cache_after=trial.candidate.empty_cache_after if trial else "",
            total_bytes=total_bytes,
            memory_fraction=trial.candidate.memory_fraction if trial else None,
        )
        return found

    free = trial.outcome if trial else answer.without_limit
    assert free is not None  # noqa: S101 - an answer without problem has one
    return answer.word_on(target(answer, total_bytes), free, replayed)
