"""What users wait for goes first, and what is left for later is done later, with the same result."""

import os
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from threading import enumerate as enumerate_threads
from typing import Any

import numpy as np
import pytest
from vramscope.dashboard.address import Address
from vramscope.dashboard.answers import totals
from vramscope.dashboard.data import Data
from vramscope.dashboard.queries.precedence import Precedence
from vramscope.dashboard.server import pending_pages

from vramscope import conversion_cache
from vramscope.errors import UnknownNameError
from vramscope.formats import Watch
from vramscope.loading import HurriedFollower, load
from vramscope.model.recording import Run

LONG_AGO_S = 1_000_000
N_EVENTS = conversion_cache.LIMITS.fewest_events + 1000


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("VRAMSCOPE_CACHE", str(tmp_path / "cache"))
    keep, at_once = conversion_cache.keep, conversion_cache.Limits(settled_ns=0)
    # A file that was just written may change again, so it would not be cached for two seconds.
    monkeypatch.setattr(conversion_cache, "keep", lambda *given: keep(*given, at_once))
    yield tmp_path / "cache"
    settled()


def settled() -> None:
    """Wait until all files are settled: they are cached where the environment says."""
    for thread in enumerate_threads():
        if thread.name == "vramscope-settle":
            thread.join(30)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    return snapshot(tmp_path / "large.pickle")


def snapshot(path: Path, address: int = 1 << 40) -> Path:
    """A snapshot that is long enough to be cached, whose last block stays."""
    events = [
        {
            "action": action,
            "addr": address,
            "size": 512 * (1 + i % 7),
            "stream": 0,
            "frames": [],
            "time_us": i + 1,
        }
        for i in range(N_EVENTS // 3)
        for action in ("alloc", "free_requested", "free_completed")
    ]
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [events]}))
    os.utime(path, (LONG_AGO_S, LONG_AGO_S))
    return path


def waiting(target: Any, *arguments: Any) -> tuple[Thread, Event]:
    """Return a thread that runs *target*, and an event that is set when it is through."""
    done = Event()

    def run() -> None:
        target(*arguments)
        done.set()

    thread = Thread(target=run, daemon=True)
    thread.start()
    return thread, done


def test_reading_ahead_waits_for_the_run_that_a_user_waits_for() -> None:
    precedence = Precedence()
    precedence.let_pass("other")
    with precedence.wants("mine"):
        precedence.let_pass("mine")
        _, done = waiting(precedence.let_pass, "other")
        assert not done.wait(0.05)

    assert done.wait(30)


def test_a_run_that_is_read_ahead_goes_on_once_a_user_waits_for_it() -> None:
    precedence = Precedence()
    with precedence.wants("mine"):
        _, done = waiting(precedence.let_pass, "other")
        with precedence.wants("other"):
            assert done.wait(30)


def test_work_in_the_background_waits_for_pages() -> None:
    precedence = Precedence(quiet_s=0.0)
    with precedence.page():
        _, done = waiting(precedence.until_quiet)
        assert not done.wait(0.05)

    assert done.wait(30)


def test_a_page_that_hangs_ends_no_other_work() -> None:
    precedence = Precedence(quiet_s=0.0, longest_s=0.05)
    with precedence.page(), precedence.wants("mine"):
        precedence.until_quiet()
        precedence.let_pass("other")


def test_between_its_pieces_long_work_rests_only_while_pages_are_asked_for() -> None:
    calm, moved = Precedence(quiet_s=0.0), Precedence(quiet_s=1e9)
    assert calm.rest_s(0.004) == moved.rest_s(0.004) == 0.0
    with calm.page():
        assert calm.rest_s(0.004) > 4 * 0.004
        assert calm.rest_s(0.0) == 0.0
    with moved.page():
        pass

    assert calm.rest_s(0.004) == 0.0
    # A hand that never rests: the work goes on at a part of its pace, so that it ends.
    assert 4 * 0.004 < moved.rest_s(0.004) < 1.0
    assert moved.rest_s(3.0) < 1.0


def test_a_file_read_in_a_hurry_is_cached_when_it_settles(large: Path, cache: Path) -> None:
    follower = HurriedFollower(large)
    hurried = follower.run
    assert not cache.exists()

    follower.settle()
    follower.settle()

    (kept,) = cache.iterdir()
    assert kept.stat().st_size > N_EVENTS
    assert follower.run == load(large) == replace(hurried, recordings=follower.run.recordings)
    for settled, first in zip(follower.run.recordings, hurried.recordings, strict=True):
        assert replace(settled, checkpoints=()) == first


def test_levels_of_the_check_are_those_of_the_analysis(large: Path) -> None:
    follower = HurriedFollower(large)

    recording, levels = follower.levels or pytest.fail("no levels")

    known = recording.timeline()
    names = ("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes")
    for name, level in zip(names, levels, strict=True):
        assert np.array_equal(getattr(known, name), level)
    assert recording is follower.run.recordings[0]


def test_a_hurried_run_has_the_doubts_of_the_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = snapshot(tmp_path / "damaged.pickle")
    content = pickle.loads(path.read_bytes())
    end = {"address": 1 << 40, "total_size": 2 << 20, "blocks": []}
    content["segments"] = [
        end | {"blocks": [{"size": 2 << 20, "requested_size": 5, "state": "active_allocated"}]}
    ]
    path.write_bytes(pickle.dumps(content))
    os.utime(path, (LONG_AGO_S, LONG_AGO_S))
    data = Data(path)
    (run,) = data.runs.paths()

    early = data.view(Address(run=run))

    monkeypatch.setenv("VRAMSCOPE_CACHE", "off")
    assert early.recording.notes == load(path).recordings[0].notes
    assert early.recording.notes


def test_the_first_totals_of_a_view_are_those_of_the_check(large: Path) -> None:
    data = Data(large)
    (run,) = data.runs.paths()
    view = data.view(Address(run=run))

    known = data.derive(view, ("timeline",), lambda _: pytest.fail("computed again"))

    assert totals(data, view) is known
    assert known == view.recording.timeline()


def test_a_file_that_was_read_for_a_page_is_cached_later(large: Path, cache: Path) -> None:
    data = Data(large)
    data.precedence = Precedence(quiet_s=0.0)
    (run,) = data.runs.paths()
    with data.precedence.page():
        before = data.view(Address(run=run))
        assert not cache.exists()
    settled()

    assert len([*cache.iterdir()]) == 1
    after = data.view(Address(run=run))
    assert after.key == before.key
    assert after.recording.trace is before.recording.trace


def test_prefetch_computes_the_headline_after_the_page(large: Path) -> None:
    data = Data(large)
    data.precedence = Precedence(quiet_s=0.0)
    (run,) = data.runs.paths()
    with data.precedence.page():
        thread = pending_pages.read_ahead(data)
        view = data.view(Address(run=run))
        answers = data._opened(run).answers
        thread.join(0.2)
        assert thread.is_alive()
        assert (view.key, ("folded", len(view.recording.stacks))) not in answers
    thread.join(30)

    assert (view.key, ("folded", len(view.recording.stacks))) in answers


class Still:
    """A run that does not grow."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def refresh(self) -> bool:
        return False


def test_a_file_read_ahead_lets_the_one_that_a_user_waits_for_pass(tmp_path: Path) -> None:
    paths = [tmp_path / "ahead.pickle", tmp_path / "mine.pickle"]
    for path in paths:
        path.write_bytes(b"")
    user_waits, ahead_is_asked, order = Event(), Event(), []

    class Watched:
        def discover(self, _: Path) -> list[Path]:
            return paths

        def follow(self, path: Path, watch: Watch, *_: Any, **_options: Any) -> Any:
            if path.stem == "ahead":
                assert user_waits.wait(30)
                ahead_is_asked.set()
                watch()
            else:
                user_waits.set()
                assert ahead_is_asked.wait(30)
                Event().wait(0.05)
            order.append(path.stem)
            return Still(Run(path.stem, str(path), (), started_ns=1))

    data = Data(tmp_path, Watched())
    ahead, mine = data.runs.paths()
    _, done = waiting(data.open_ahead, ahead)
    with pytest.raises(UnknownNameError, match="has no recording"):
        data.view(Address(run=mine))

    assert done.wait(30)
    assert order == ["mine", "ahead"]
