"""The search for a setting of the allocator, on the side: how far it is, what it found, how to stop it."""

import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from threading import Event, Lock, Thread
from weakref import WeakKeyDictionary

from vramscope.analysis._cards import CARDS
from vramscope.analysis.settings_advice import (
    Candidate,
    SettingsAdvice,
    Trial,
    outside_bytes,
    settings_advice,
)
from vramscope.analysis.what_if import Outcome
from vramscope.errors import VramscopeError
from vramscope.model.recording import Recording

from .data import Data, View, answer

UNKNOWN_OUTSIDE = 600 << 20
"""CUDA's context and libraries, where nobody measured them."""
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
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fit:
    """Everything that takes long, asked once."""

    advice: SettingsAdvice
    base: Outcome
    """As it is, without limit."""
    outside: int
    outside_is_known: bool

    def room(self, total_bytes: int) -> int:
        """What the allocator could have of a device."""
        return max(total_bytes - self.outside, 1)


class Search:
    """One search, in a thread of its own."""

    def __init__(self, data: Data, view: View) -> None:
        self.view = view
        self.wanted: list[Candidate] = []
        self.trials: list[Trial] = []
        """Tried until now, in the order of ``wanted``."""
        self.stage = "Replaying the run as it is"
        self.fit: Fit | None = None
        self.problem = ""
        self._data = data
        self._stop = Event()
        self._done = Event()
        Thread(target=self._run, daemon=True, name="vramscope-fit").start()

    @property
    def is_done(self) -> bool:
        """Whether it found or failed; also when it was stopped."""
        return self._done.is_set()

    @property
    def is_whole(self) -> bool:
        """Whether everything was tried."""
        return len(self.trials) == len(self.wanted)

    def wait(self, at_most_s: float) -> bool:
        """Whether it is done by then."""
        return self._done.wait(at_most_s)

    def stop(self) -> None:
        """After the replay that runs: some seconds for a million events."""
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
        advice = settings_advice(recording, play=self._play)
        self.stage = "Replaying without limit"
        base = advice.base if advice.base.capacity_bytes is None else answer(recording, "what_if")
        known = outside_bytes(recording)
        fit = Fit(advice, base, UNKNOWN_OUTSIDE if known is None else known, known is not None)
        self.stage = "Looking at strategies, batches and cards"
        self._data.ask(self.view, "strategies")
        self._data.ask(self.view, "batch_fit")
        for _, _, size in devices(recording):
            word(self._data, self.view, fit, size, None)
            if advice.advised:
                word(self._data, self.view, fit, size, advice.advised)
        self.fit = fit

    def _play(self, trial: Callable[[Candidate], Outcome], wanted: Iterable[Candidate]) -> Iterator[Outcome]:
        self.wanted = list(wanted)
        for candidate in self.wanted:
            if self._stop.is_set():
                return
            self.stage = f"Trying {candidate.name}"
            outcome = trial(candidate)
            self.trials.append(Trial(candidate, outcome))
            yield outcome


class Searches:
    """The latest searches of one dashboard."""

    def __init__(self, data: Data) -> None:
        self._data = data
        self._lock = Lock()
        self._known: OrderedDict[Hashable, Search] = OrderedDict()

    def of(self, view: View, *, anew: bool = False) -> Search:
        """The one of this recording, begun now where there is none. One that runs goes on though the run has
        grown since; *anew*: where it was stopped."""
        place = (view.run_id, *view.key[2:])
        with self._lock:
            known = self._known.get(place)
            is_old = known is not None and known.is_done and known.view.key != view.key
            if known is None or is_old or (anew and known.is_done):
                known = self._known[place] = Search(self._data, view)
            self._known.move_to_end(place)
            while len(self._known) > _MOST_SEARCHES:
                self._known.popitem(last=False)[1].stop()
            return known


_OF: WeakKeyDictionary[Data, Searches] = WeakKeyDictionary()


def searches(data: Data) -> Searches:
    """Those of that dashboard."""
    return _OF.setdefault(data, Searches(data))


# ---------------------------------------------------------------------------------------- the card


def devices(recording: Recording) -> list[tuple[str, str, int]]:
    """Key, name and bytes of what the page shows: this device, where it is known, and cards."""
    cards = [(slug(card.label), card.label, card.total_bytes) for card in CARDS if card.name in _SHOWN]
    own = recording.device.total_bytes
    return [("this-device", "this device", own), *cards] if own else cards


def slug(text: str) -> str:
    """For an address."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40]


def word(data: Data, view: View, fit: Fit, total_bytes: int, trial: Trial | None) -> str:
    """``fits``, ``tight`` or ``too small``; replayed only where the bytes alone do not say it."""
    free, room = trial.outcome if trial else fit.base, fit.room(total_bytes)
    if free.capacity_bytes is None and free.peak_reserved <= room:
        return "fits"
    if free.capacity_bytes is None and free.peak_allocated > room:
        return "too small"
    found = data.ask(
        view,
        "what_if",
        conf=trial.candidate.conf if trial else None,
        capacity_bytes=room,
        empty_cache_after=trial.candidate.empty_cache_after if trial else "",
        total_bytes=total_bytes,
        memory_fraction=trial.candidate.memory_fraction if trial else None,
    )
    return "too small" if not found.fits else "tight" if found.n_retries else "fits"
