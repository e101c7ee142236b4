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
LAST = (
    "document.querySelector('#ov-graph .js-plotly-plot')._fullData.find(t => t.uid === 'allocated').x.at(-1)"
)
QUIET_MS = 2500
"""More than two ticks."""


def until(page: Any, expression: str, arg: Any = None) -> None:
    """Until true; the policy forbids wait_for_function's eval."""
    for _ in range(300):
        if page.evaluate(expression, arg):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never true: {expression}")


@pytest.fixture
def followed(tmp_path: Path, runs: Any, serve_at: Any, visit: Any) -> Any:
    """A training of two steps that goes on, and its overview with an instant chosen."""
    program = runs.open_program(tmp_path / "live")
    program.begin()
    for _ in range(2):
        program.step()
    visitor = visit(serve_at(tmp_path))
    (name,) = Data(tmp_path).paths()
    visitor.go(f"/overview?run={name}&axis=events&at=12").plotted()
    visitor.program = program
    return visitor


def test_what_was_chosen_stays_and_a_hidden_page_asks_for_nothing(followed: Any) -> None:
    page, program = followed.page, followed.program
    chosen = page.inner_text("#ov-live h3")
    program.step()
    until(page, f"n => {LAST} === n", program.n_events)
    page.evaluate(HIDE, True)
    page.wait_for_timeout(500)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    program.step()
    page.wait_for_timeout(QUIET_MS)
    assert asked == []
    page.evaluate(HIDE, False)
    until(page, f"n => {LAST} === n", program.n_events)

    assert page.inner_text("#ov-live h3") == chosen
    assert "instant 12" in chosen


def test_a_run_begun_anew_in_its_place_is_shown_and_said(
    followed: Any, tmp_path: Path, runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed.program.writer.close(Outcome.FINISHED)
    shutil.rmtree(tmp_path / "live")
    monkeypatch.setattr(runs, "START_NS", runs.START_NS + 10**9)
    again = runs.open_program(tmp_path / "live")
    again.begin()
    again.flush()
    until(followed.page, "document.querySelector('#alarm').innerText.includes('Replaced')")
    until(followed.page, f"n => {LAST} === n", again.n_events)
