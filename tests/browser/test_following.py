"""A page that is left open on a run: what was chosen stays, nothing is asked while nobody looks."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from vramscope.dashboard.data import Data

from vramscope.model.recording import Outcome

HIDE = """hidden => {
  Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });
  document.dispatchEvent(new Event('visibilitychange'));
}"""
LAST = "window.vramscope.timeline.drawn('allocated')?.x.at(-1)"


@pytest.fixture
def followed(tmp_path: Path, runs: Any, serve_at: Any, visit: Any) -> Any:
    """A training of two steps that goes on, and its overview with an instant chosen."""
    program = runs.open_program(tmp_path / "live")
    program.begin()
    for _ in range(2):
        program.step()
    visitor = visit(serve_at(tmp_path))
    (name,) = Data(tmp_path).runs.paths()
    visitor.go(f"/overview?run={name}&axis=events&at=12").plotted()
    visitor.program = program
    return visitor


def test_what_was_chosen_stays_and_a_hidden_page_asks_for_nothing(followed: Any, visit: Any) -> None:
    page, program = followed.page, followed.program
    beside = visit(followed.base).go(page.url.removeprefix(followed.base))
    beside.plotted()
    chosen = page.inner_text("#ov-live h3")
    program.step()
    followed.until(f"n => {LAST} === n", program.n_events)
    page.evaluate(HIDE, True)
    followed.at_rest()
    del followed.asked[:]
    # A page that is in view is the clock: it hears of two further steps, one tick after the other.
    for _ in range(2):
        program.step()
        beside.until(f"n => {LAST} === n", program.n_events)
    assert followed.asked == []
    page.evaluate(HIDE, False)
    followed.until(f"n => {LAST} === n", program.n_events)

    assert page.inner_text("#ov-live h3") == chosen
    assert "instant 12" in chosen


def test_a_run_that_replaces_another_is_shown_and_reported(followed: Any, tmp_path: Path, runs: Any) -> None:
    followed.program.writer.close(Outcome.FINISHED)
    shutil.rmtree(tmp_path / "live")
    again = runs.open_program(tmp_path / "live", started_ns=runs.START_NS + 10**9)
    again.begin()
    again.flush()
    followed.until("document.querySelector('#alarm').innerText.includes('Replaced')")
    followed.until(f"n => {LAST} === n", again.n_events)
    # The browser itself logs the answer to what the page requested in between: there is no such run.
    complaints = followed.complaints
    complaints[:] = [each for each in complaints if "status of 404" not in each]
