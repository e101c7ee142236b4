"""The search of what would fit: its answer grows, and it pauses while no page asks about it."""

from dataclasses import replace
from threading import Event, current_thread
from time import sleep
from typing import Any

import pytest
from vramscope.dashboard.data import Data, View
from vramscope.dashboard.queries import settings_search
from vramscope.dashboard.queries.precedence import Precedence
from vramscope.dashboard.queries.settings_search import searches, verdict_so_far
from vramscope.dashboard.runs import Pace

from vramscope.analysis.fit import FitProgress, fit
from vramscope.analysis.fit.answer import FitAnswer, FitVerdict, Target

GIB = 1 << 30
LONGEST_S = 60


@pytest.fixture
def held(monkeypatch: Any) -> Any:
    """A search that does not begin with its first replay before ``go`` is set, and counts its stages."""

    class Held:
        go, at_replay, stages = Event(), Event(), list[str]()

        def fit(self, recording: Any, question: Any, progress: FitProgress) -> FitAnswer:
            def begin(stage: str) -> None:
                if stage == "replaying":
                    self.at_replay.set()
                    assert self.go.wait(LONGEST_S)
                progress.stage(stage)
                self.stages.append(stage)

            return fit(recording, question, FitProgress(begin, progress.play, progress.known))

    found = Held()
    monkeypatch.setattr(settings_search, "fit", found.fit)
    return found


def test_what_needs_no_replay_is_known_before_the_first(data: Data, view: View, held: Any) -> None:
    search = searches(data).of(view)
    search.wait_for_recorded()
    assert held.at_replay.wait(LONGEST_S)

    assert not search.is_done
    assert search.fit is not None
    assert search.fit.without_limit is None
    assert search.fit.batch is not None
    assert search.fit.strategies is not None
    # 512 MiB were reserved: they fit beside 600 MiB of context on 16 GiB, and nothing of it fits 16 MiB.
    assert verdict_so_far(search.fit, 16 * GIB) is FitVerdict.FITS
    assert verdict_so_far(search.fit, GIB // 64) is FitVerdict.TOO_SMALL
    held.go.set()
    assert search.wait(LONGEST_S)


def test_it_pauses_while_nobody_looks_and_goes_on_when_asked(data: Data, view: View, held: Any) -> None:
    search = searches(data).of(view)
    assert held.at_replay.wait(LONGEST_S)
    data.pace = Pace(left_s=0.0)
    held.go.set()
    sleep(0.5)  # the rest of this search takes a tenth of it

    assert "replaying" not in held.stages
    assert not search.is_done
    data.pace = Pace()
    assert searches(data).of(view) is search
    assert search.wait(LONGEST_S)
    assert held.stages[-1] == "cards"


def test_of_a_long_recording_it_waits_until_no_page_is_computed(data: Data, view: View) -> None:
    data.pace = Pace(events_at_once=0)
    with data.precedence.page():
        search = searches(data).of(view)
        search.wait_for_recorded()  # what a page waits for itself

        assert not search.wait(1.0)
        assert search.trials == []
    assert search.wait(LONGEST_S)
    assert search.is_whole


def test_while_somebody_moves_for_minutes_each_replay_rests_often_and_the_search_ends(
    data: Data, view: View
) -> None:
    called = list[tuple[str, float]]()

    class Watched(Precedence):
        def rest_s(self, worked_s: float) -> float:
            called.append((current_thread().name, super().rest_s(worked_s)))
            return 0.0

    data.precedence, data.pace = Watched(longest_s=0.0), Pace(events_at_once=0)
    with data.precedence.page():
        search = searches(data).of(view)
        assert search.wait(LONGEST_S)

    assert search.is_whole
    n_replays = len(search.trials) + 1
    rests = [rest_s for name, rest_s in called if name == "vramscope-fit"]
    assert len(rests) >= n_replays * min(len(view.recording.trace) // 3, 900)
    assert all(rest_s > 0 for rest_s in rests)


def test_a_short_search_does_not_rest_for_the_page_that_waits_for_it(data: Data, view: View) -> None:
    rests = list[float]()

    class Watched(Precedence):
        def rest_s(self, worked_s: float) -> float:
            rests.append(worked_s)
            return super().rest_s(worked_s)

    data.precedence = Watched()
    with data.precedence.page():
        search = searches(data).of(view)
        assert search.wait(LONGEST_S)

    assert search.is_whole
    assert rests == []


def test_stopped_while_it_pauses_it_ends(data: Data, view: View, held: Any) -> None:
    search = searches(data).of(view)
    assert held.at_replay.wait(LONGEST_S)
    data.pace = Pace(left_s=0.0)
    held.go.set()
    search.stop()

    assert search.wait(LONGEST_S)


def test_a_card_is_judged_by_the_share_of_it_that_the_program_allows_itself() -> None:
    half = FitAnswer(0, 0, limit_bytes=40 * GIB, own_total_bytes=80 * GIB)
    card = Target("a card of 24 GiB", 24 * GIB)

    assert half.room_on(card) == 12 * GIB
    assert half.allowed_on(card) == 12 * GIB
    assert replace(half, limit_bytes=80 * GIB).allowed_on(card) is None  # what a context leaves is less
    assert replace(half, limit_bytes=None).allowed_on(card) is None
