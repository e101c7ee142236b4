"""The shell: the list of runs, and what a page does when its server is gone."""

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from vramscope.dashboard import create_app
from vramscope.dashboard.runs import run_id
from vramscope.dashboard.server.security import Access
from werkzeug.serving import BaseWSGIServer, make_server

pytestmark = pytest.mark.browser


@pytest.fixture
def server_at() -> Iterator[Callable[..., BaseWSGIServer]]:
    """``server_at(folder, port)``: a server of its own process identity; every one is stopped at the end."""
    running: list[tuple[BaseWSGIServer, Thread]] = []

    def start(root: Path, port: int = 0) -> BaseWSGIServer:
        app = create_app(root, Access(token=None))
        server = make_server("127.0.0.1", port, app.server, threaded=True)
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        running.append((server, thread))
        return server

    yield start
    for server, thread in running:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_page_says_that_its_server_is_gone_and_goes_on_when_it_is_back(
    server_at: Any, visit: Any, runs: Any, tmp_path: Path
) -> None:
    path = runs.recorded(tmp_path / "gpt", steps=8)
    first = server_at(tmp_path)
    port = first.server_port
    visitor = visit(f"http://127.0.0.1:{port}").go(f"/overview?run={run_id(path)}")
    page = visitor.page
    page.wait_for_selector(".claim")
    first.shutdown()
    first.server_close()
    page.wait_for_selector("#connection")
    banner = page.inner_text("#connection")
    page.click("#menu a:text('Phases')")
    server_at(tmp_path, port)
    page.wait_for_selector("#connection", state="detached")
    page.wait_for_selector(".page section")
    visitor.at_rest()

    assert "does not answer" in banner
    assert page.inner_text("#menu a.here") == "Phases"
    # The browser itself writes a line for each request that found no server; Dash must not add an error.
    assert not [each for each in visitor.complaints if "body stream" in each or "Callback" in each]
    visitor.complaints.clear()


@pytest.fixture
def listed(serve_at: Any, visit: Any, runs: Any, tmp_path: Path) -> Any:
    """A visitor of a list of four runs in two folders, of 2 to 5 steps."""
    for number, name in enumerate(("vision/resnet-a", "vision/resnet-b", "text/gpt-a", "text/gpt-b")):
        tags = "baseline fp8" if number in (0, 3) else "fp8-not"
        began_ns = runs.START_NS + number * 10**9
        runs.recorded(tmp_path / name, steps=2 + number, started_ns=began_ns, tags=tags)
    visitor = visit(serve_at(tmp_path)).go("/")
    visitor.until("document.querySelectorAll('.runs .run-link').length === 4")
    return visitor


NAMES = "[...document.querySelectorAll('.runs .run-link')].map(e => e.innerText).join(' ')"


def test_runs_are_sorted_searched_and_grouped_in_the_browser(listed: Any) -> None:
    page = listed.page
    newest = page.evaluate(NAMES)
    page.click("button.sort[data-key=steps]")
    page.click("button.sort[data-key=steps]")
    fewest = page.evaluate(NAMES)
    page.fill("#runs-search", "text gpt-b")
    found = page.evaluate(NAMES)
    page.fill("#runs-search", "")
    page.locator(".tag", has_text="baseline").first.click()
    tagged = page.evaluate(NAMES)
    page.fill("#runs-search", "tag:FP8 resnet")
    of_both = page.evaluate(NAMES)
    page.fill("#runs-search", "")
    page.get_by_role("button", name="By folder").click()
    folders = page.locator(".runs tr.folder").all_inner_texts()
    of_folders = page.evaluate(NAMES)
    page.get_by_role("button", name="By first tag").click()
    tags = page.locator(".runs tr.folder bdi").all_inner_texts()
    of_tags = page.evaluate(NAMES)
    page.reload()
    page.wait_for_selector(".runs tr.folder")

    assert newest == "gpt-b gpt-a resnet-b resnet-a"
    assert fewest == "resnet-a resnet-b gpt-a gpt-b"
    assert found == "gpt-b"
    assert (tagged, of_both) == ("resnet-a gpt-b", "resnet-a")
    assert folders == ["text2 runs", "vision2 runs"]
    assert of_folders == "gpt-a gpt-b resnet-a resnet-b"
    assert (tags, of_tags) == (["baseline", "fp8-not"], "resnet-a gpt-b resnet-b gpt-a")
    assert page.evaluate(NAMES) == of_tags


def test_two_ticked_runs_are_compared_the_earlier_one_as_baseline(listed: Any) -> None:
    page = listed.page
    for name in ("gpt-a", "resnet-b"):
        page.check(f".tick input[aria-label='Compare {name}']")
    page.click(".compare-link")
    page.wait_for_selector(".claim")

    assert page.inner_text(".support").startswith("resnet-b → gpt-a")


def test_three_ticked_runs_are_a_table_that_a_link_restores(listed: Any) -> None:
    page = listed.page
    names = ("resnet-a", "gpt-a", "resnet-b")
    for name in names:
        page.check(f".tick input[aria-label='Compare {name}']")
    read = (
        "[...document.querySelectorAll('.beside tbody tr')].map(tr => [...tr.children].map(e => e.innerText))"
    )
    rows = page.evaluate(read)
    in_list = {
        name: page.locator(".runs tr", has=page.locator(f"input[aria-label='Compare {name}']"))
        .locator("td")
        .all_inner_texts()
        for name in names
    }
    page.reload()
    page.wait_for_selector(".beside")

    assert [row[0] for row in rows] == ["resnet-a", "resnet-b", "gpt-a"]  # the earliest first
    assert [(row[1], row[3]) for row in rows] == [tuple(in_list[row[0]][3:5]) for row in rows]
    assert [row[2] for row in rows] == ["baseline", "the same", "the same"]
    assert [row[6] for row in rows] == [in_list[row[0]][7] for row in rows]
    assert page.evaluate(read) == rows
    page.uncheck(".tick input[aria-label='Compare gpt-a']")
    page.wait_for_selector(".compare-link")


@pytest.mark.parametrize("path", ["/", "/overview?run={run}&axis=events", "/none"])
def test_the_head_of_a_page_requests_it_and_dash_takes_that_answer(
    serve_at: Any, visit: Any, runs: Any, tmp_path: Path, path: str
) -> None:
    run = run_id(runs.recorded(tmp_path / "gpt", steps=8))
    visitor, sent = visit(serve_at(tmp_path)), list[str]()
    visitor.page.on("request", lambda one: sent.append(one.url) if "page.children" in body_of(one) else None)
    visitor.go(path.format(run=run)).at_rest()

    (url,) = sent
    assert url.endswith("/_dash-update-component")  # Dash adds the id of its page load


def test_a_page_comes_though_what_its_head_requested_is_lost(
    serve_at: Any, visit: Any, runs: Any, tmp_path: Path
) -> None:
    run = run_id(runs.recorded(tmp_path / "gpt", steps=8))
    visitor, lost = visit(serve_at(tmp_path)), list[str]()

    def lose(route: Any) -> None:
        lost.append(route.request.url)
        route.abort()

    visitor.page.route("**/_dash-update-component", lose)
    visitor.go(f"/overview?run={run}").page.wait_for_selector(".claim")
    visitor.at_rest()

    assert len(lost) == 1
    visitor.complaints.clear()


def body_of(request: Any) -> str:
    return request.post_data or ""
