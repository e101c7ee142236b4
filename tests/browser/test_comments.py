"""A comment on an instant: written, changed and deleted by keyboard alone, on a run that grows too."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vramscope.dashboard.address import Address
from vramscope.dashboard.data import Data
from vramscope.dashboard.queries.comments import comments

pytestmark = pytest.mark.browser
FIELD = "#inspector textarea.comment"
MARKS = "window.vramscope.timeline.comments()"
COPIED = "() => { navigator.clipboard.writeText = async text => { window.copied = text; } }"


@pytest.fixture(scope="module")
def guest(staying_with_run: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        with staying_with_run("commented", 6) as visitor:
            yield visitor


def kept(visitor: Any) -> dict[int, str]:
    data = Data(visitor.root)
    return comments(data, data.view(Address(run=visitor.run)))


def write(visitor: Any, text: str) -> None:
    """Press n, type, and leave the field with Escape."""
    page = visitor.page
    page.keyboard.press("n")
    visitor.until(f"document.activeElement?.matches('{FIELD}')")
    page.keyboard.press("Control+a")
    page.keyboard.press("Delete")
    page.keyboard.type(text)
    page.keyboard.press("Escape")
    visitor.until("document.querySelector('.comment-said')?.textContent")


def test_the_keyboard_writes_changes_and_deletes_a_comment(visitor: Any) -> None:
    page = visitor.go(f"/overview?run={visitor.run}&at=60").page
    visitor.plotted()
    write(visitor, "the evaluation begins")
    visitor.until(f"{MARKS}.length === 1")

    assert kept(visitor) == {60: "the evaluation begins"}
    assert page.inner_text(".comment-said") == "Kept."
    assert page.is_visible("#inspector")

    write(visitor, "no: the second step")
    visitor.until(f"{MARKS}[0]?.text === 'no: the second step'")
    assert kept(visitor) == {60: "no: the second step"}

    write(visitor, "")
    visitor.until(f"{MARKS}.length === 0")
    assert kept(visitor) == {}


def test_a_comment_is_on_every_page_in_the_link_and_in_the_copied_text(visitor: Any) -> None:
    page = visitor.go(f"/overview?run={visitor.run}&at=60").page
    visitor.plotted()
    write(visitor, "here it rises")
    page.goto(page.url.replace("/overview", "/phases"))
    visitor.until(f"{MARKS}?.[0]?.text === 'here it rises'")
    page.wait_for_selector(FIELD)
    page.evaluate(COPIED)
    page.get_by_role("button", name="Copy as text").click()
    visitor.until("window.copied")

    assert page.input_value(FIELD) == "here it rises"
    copied = page.evaluate("window.copied")
    assert "Comment:\n- here it rises" in copied
    assert copied.index("- Reserved: ") < copied.index("By category:\n- ") < copied.index("Comment:")


def test_a_click_on_the_mark_opens_the_comment(visitor: Any) -> None:
    page = visitor.go(f"/overview?run={visitor.run}&at=33").page
    visitor.plotted()
    write(visitor, "third of the first step")
    visitor.until(f"{MARKS}.some(each => each.at === 33)")
    page.goto(f"{visitor.base}/overview?run={visitor.run}")
    visitor.plotted()
    mark = page.evaluate(f"{MARKS}.find(each => each.at === 33)")
    box = page.locator(".track").bounding_box()
    page.mouse.click(box["x"] + mark["x"], box["y"] + mark["y"])
    page.wait_for_selector(FIELD)

    assert page.input_value(FIELD) == "third of the first step"


def test_the_other_comments_of_the_run_are_listed_and_lead_there(visitor: Any) -> None:
    for at in (20, 90):
        visitor.go(f"/overview?run={visitor.run}&at={at}")
        visitor.plotted()
        write(visitor, f"number {at}")
    page = visitor.go(f"/overview?run={visitor.run}&at=90&sel=i").page
    page.get_by_role("button", name="number 20").focus()
    page.keyboard.press("Enter")
    visitor.until(f"document.querySelector('{FIELD}')?.value === 'number 20'")

    assert "at=20" in page.url


def test_a_refused_comment_stays_in_the_field_with_the_reason(visitor: Any) -> None:
    page = visitor.go(f"/overview?run={visitor.run}&at=70").page
    visitor.plotted()
    page.route(
        "**/api/comment?*", lambda route: route.fulfill(status=409, content_type="text/plain", body="No.")
    )
    write(visitor, "kept nowhere")
    visitor.complaints[:] = [each for each in visitor.complaints if "409" not in each]
    page.unroute("**/api/comment?*")

    assert page.inner_text(".comment-said") == "Not kept: No."
    assert page.input_value(FIELD) == "kept nowhere"
    assert 70 not in kept(visitor)


@pytest.mark.exhaustive
def test_a_run_that_grows_is_commented_while_it_grows(
    runs: Any, serve_at: Any, visit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    program = runs.open_program(tmp_path / "runs" / "live")
    program.begin()
    program.step()
    base = serve_at(tmp_path / "runs", live_ms=300)
    (run,) = Data(tmp_path / "runs").runs.paths()
    one, other = visit(base).go(f"/overview?run={run}&at=40"), visit(base).go(f"/overview?run={run}")
    one.plotted()
    other.plotted()
    write(one, "seen while it ran")
    program.step()
    # Another viewer gets it with the next events, and the field of the first one stays as it is.
    other.until(f"{MARKS}.some(each => each.text === 'seen while it ran')")

    assert one.page.input_value(FIELD) == "seen while it ran"
