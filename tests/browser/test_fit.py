"""The room "Fit" as a person meets it: which card would do, which setting; both are in the address."""

import pickle
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from vramscope.dashboard.data import Data
from vramscope.dashboard.queries import settings_search

from vramscope.analysis.fit import FitProgress

pytestmark = pytest.mark.browser
MIB = 1 << 20


def growing(path: Path) -> None:
    """30 blocks, one after the other, each too large for the segments of those before: 11.5 GiB for 0.7."""
    trace, segments = [], []
    for number in range(30):
        at, size = (number + 1) << 31, (100 + 20 * number) * MIB
        words = ("segment_alloc", "alloc", "free_requested", "free_completed")
        trace += [entry(action, at, size) for action in words]
        block = {"address": at, "size": size, "requested_size": 0, "state": "inactive", "frames": []}
        sizes = {"total_size": size, "allocated_size": 0, "active_size": 0, "requested_size": 0}
        segments.append(
            {"device": 0, "address": at, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0),
             "is_expandable": False, "frames": [], "blocks": [block]} | sizes
        )  # fmt: skip
    path.write_bytes(pickle.dumps({"segments": segments, "device_traces": [trace]}))


def entry(action: str, address: int, size: int) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 0, "frames": [], "time_us": 0}


@pytest.fixture
def pieces(tmp_path: Path, serve_at: Any, visit: Any) -> Any:
    growing(tmp_path / "pieces.pickle")
    visitor = visit(serve_at(tmp_path))
    (visitor.run,) = Data(tmp_path).runs.paths()
    return visitor


def test_a_card_and_a_setting_are_chosen_and_stay_in_the_address(pieces: Any) -> None:
    page = pieces.go(f"/fit?run={pieces.run}").page
    page.wait_for_selector(".fit-card.here")

    page.click(".fit-card:has-text('A100'):has-text('40 GB')")
    page.wait_for_selector(".fit-card.here:has-text('A100'):has-text('40 GB')")
    page.click("a:has-text('max_split_size_mb:64')")
    page.wait_for_selector(".fit-here:has-text('max_split_size_mb:64')")
    page.reload()
    page.wait_for_selector(".fit-here:has-text('max_split_size_mb:64')")
    assert "40\u00a0GB" in page.inner_text(".claim")
    assert "by=a100-40-gb" in page.url


def test_an_answer_about_the_card_before_does_not_replace_the_chosen_one(pieces: Any) -> None:
    kept: list[Any] = []

    def late(route: Any) -> None:
        if "fi-progress.children" in (route.request.post_data or "") and not kept:
            kept.append((route, route.fetch()))
        else:
            route.continue_()

    page = pieces.page
    page.route("**/_dash-update-component*", late)
    pieces.go(f"/fit?run={pieces.run}")
    page.wait_for_selector(".fit-card.here")
    for _ in range(1000):
        if kept:
            break
        page.wait_for_timeout(20)
    page.click(".fit-card:has-text('A100'):has-text('40 GB')")
    page.wait_for_selector(".fit-card.here:has-text('A100'):has-text('40 GB')")
    route, answer = kept[0]
    route.fulfill(response=answer)
    pieces.at_rest()

    assert page.locator(".fit-card.here:has-text('A100'):has-text('40 GB')").count() == 1


def test_the_line_to_set_can_be_copied_and_both_curves_are_drawn(pieces: Any) -> None:
    page = pieces.go(f"/fit?run={pieces.run}").page
    page.wait_for_selector("#fi-graph .js-line", state="attached")

    assert page.locator(".fit-set .command").inner_text().endswith("expandable_segments:True")
    assert page.locator(".fit-copy").count() == 1
    assert page.locator("#fi-graph .js-line").count() >= 3
    row = page.locator("tr:has-text('expandable_segments:True')").inner_text()
    assert "advised" in row
    assert "−" in row


def test_the_slider_asks_about_any_size_by_keyboard_and_stays_in_the_address(pieces: Any) -> None:
    page = pieces.go(f"/fit?run={pieces.run}").page
    page.wait_for_selector(".claim:has-text('It fits')")
    assert "by=" not in page.evaluate("location.href")

    page.focus("#fi-size-box")
    page.keyboard.press("Home")
    page.wait_for_selector(".claim:has-text('It does not fit a card of')")

    assert page.evaluate("document.activeElement.id") == "fi-size-box"
    assert page.locator(".fit-card.here").count() == 0
    page.wait_for_selector("#fi-room:has-text('for the allocator')")
    room = page.inner_text("#fi-room")
    assert "mib" in page.evaluate("location.href")
    page.reload()
    page.wait_for_selector(".claim:has-text('It does not fit a card of')")
    assert page.inner_text("#fi-room") == room


def test_a_long_search_comes_after_cards_and_batches_and_stops_on_request(
    pieces: Any, monkeypatch: Any
) -> None:
    go_on, advise = Event(), settings_search.fit

    def slowly(recording: Any, question: Any, progress: Any) -> Any:
        def after_the_first(trial: Any, wanted: Any) -> Any:
            for number, outcome in enumerate(progress.play(trial, wanted)):
                assert number or go_on.wait(30)
                yield outcome

        return advise(recording, question, FitProgress(progress.stage, after_the_first, progress.known))

    monkeypatch.setattr(settings_search, "fit", slowly)
    page = pieces.go(f"/fit?run={pieces.run}").page

    page.wait_for_selector("#fi-progress:has-text('1 of')")
    # 11.5 GiB of 11.5 were reserved: what needs no replay of a setting is there before the second one ends.
    assert page.locator(".fit-card.fit-fits").count() >= 5
    assert page.locator(".fit-card.fit-checking").count() == 0
    assert "It fits" in page.inner_text("#fi-opening .claim")
    assert "running" not in page.inner_text("#fi-savings") + page.inner_text("#fi-batch")
    assert page.locator("#fi-graph .js-line").count() >= 2
    assert page.locator(".fit-so-far tbody tr").count() > 3
    assert page.locator(".fit-so-far td:has-text('iB')").count() == 1
    page.focus("#fi-stop")
    page.keyboard.press("Enter")
    page.wait_for_selector("#fi-stop:disabled")
    go_on.set()

    page.wait_for_selector("td:has-text('not tried')")
    assert "1 of" in page.inner_text(".fit-reason")
    page.click("#fi-again")
    page.wait_for_selector("td:has-text('not tried')", state="detached")
    page.wait_for_selector(".badge:has-text('advised')")
