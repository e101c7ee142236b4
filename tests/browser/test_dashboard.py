"""What a person meets on the overview, the peak and the list: zoom, click, keys, live runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vramscope.dashboard.address import Address
from vramscope.dashboard.data import Data
from vramscope.dashboard.queries.answers import totals

from vramscope.model.recording import Outcome

pytestmark = pytest.mark.browser
PLOT = "document.querySelector('#ov-graph .js-plotly-plot')"


@pytest.fixture(scope="module")
def guest(staying_with_run: Any) -> Iterator[Any]:
    with staying_with_run("gpt", 300) as visitor:
        yield visitor


@pytest.fixture
def gpt(guest: Any, turn_of: Any) -> Iterator[Any]:
    """A visitor of a run of 300 steps, more events than the picture has columns."""
    with turn_of(guest):
        yield guest


def known(tmp_path: Path) -> Any:
    data = Data(tmp_path)
    (name,) = data.paths()
    return totals(data, data.view(Address(run=name)))


def test_the_list_leads_to_a_run(gpt: Any) -> None:
    page = gpt.go("/").page
    page.click(".run-link")
    page.wait_for_selector(".claim")

    assert "simulated" in page.inner_text(".run-header")
    assert f"run={gpt.run}" in page.url


def test_a_zoom_brings_finer_data_and_the_exact_maximum(gpt: Any) -> None:
    gpt.go(f"/overview?run={gpt.run}&axis=events").plotted()
    allocated = known(gpt.root).allocated_bytes
    assert max(gpt.trace("allocated")) * (1 << 20) == allocated.max()
    for start, end in ((100, 3000), (500, 560), (4000, 9000)):
        gpt.relayout(**{"xaxis.range[0]": start, "xaxis.range[1]": end})
        gpt.until(
            "([a, b]) => { const x = document.querySelector('#ov-graph .js-plotly-plot')._fullData"
            ".find(t => t.uid === 'allocated').x; return x[0] === a && x[x.length - 1] === b }",
            [start, end],
        )

        assert max(gpt.trace("allocated")) * (1 << 20) == allocated[start : end + 1].max()
        assert f"t0={start}&t1={end}" in gpt.page.url


def test_a_long_run_shows_its_chart_first_and_the_rest_later(gpt: Any, serve_at: Any, visit: Any) -> None:
    at_once = gpt.go(f"/overview?run={gpt.run}").page
    gpt.plotted()
    told = at_once.inner_text("#ov-opening"), at_once.inner_text("#ov-live")
    long = visit(serve_at(gpt.root, events_at_once=100)).go(f"/overview?run={gpt.run}")
    long.plotted()
    long.until("!document.querySelector('#page').innerText.includes('Counting')")
    long.until("text => document.querySelector('#ov-opening').innerText === text", told[0])

    assert long.page.inner_text("#ov-live") == told[1]
    assert long.page.locator("#ov-table .ag-row").count() > 2


def test_a_page_that_takes_long_says_so_and_comes_by_itself(gpt: Any, serve_at: Any, visit: Any) -> None:
    visitor = visit(serve_at(gpt.root, blank_s=0)).go(f"/overview?run={gpt.run}")
    page = visitor.page
    page.wait_for_selector(".working")
    visitor.plotted()
    page.click("#menu a:text('Peak')")
    page.wait_for_selector(".icicle path.surface")

    page.wait_for_selector(".working", state="detached")
    assert page.inner_text(".run-header")


def test_a_link_restores_zoom_and_instant(gpt: Any) -> None:
    gpt.go(f"/overview?run={gpt.run}&axis=events&t0=200&t1=900&at=500").plotted()

    assert gpt.page.evaluate(
        "document.querySelector('#ov-graph .js-plotly-plot')._fullLayout.xaxis.range"
    ) == [200, 900]
    assert gpt.trace("cursor", "x") == [500, 500]
    assert "instant 500" in gpt.page.inner_text("#ov-live")


def test_a_click_shows_what_was_live_there(gpt: Any) -> None:
    gpt.go(f"/overview?run={gpt.run}&axis=events&t0=0&t1=200").plotted()
    box = gpt.page.locator('#ov-graph .nsewdrag[data-subplot="xy"]').bounding_box()
    gpt.page.mouse.click(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.5)
    gpt.until("new URL(location).searchParams.get('at')")
    at = int(gpt.page.evaluate("new URL(location).searchParams.get('at')"))
    gpt.until(f"document.querySelector('#ov-live').innerText.includes('instant {at}')")

    assert abs(at - 80) <= 2
    megabytes = int(known(gpt.root).allocated_bytes[at]) >> 20
    assert f"{megabytes:.1f} MiB in" in gpt.page.inner_text("#ov-live")


def test_the_readout_follows_the_pointer(gpt: Any) -> None:
    gpt.go(f"/overview?run={gpt.run}&axis=events&t0=0&t1=200").plotted()
    box = gpt.page.locator('#ov-graph .nsewdrag[data-subplot="xy"]').bounding_box()
    gpt.page.mouse.move(box["x"] + box["width"] * 0.3025, box["y"] + 40)
    gpt.until("document.querySelector('[data-q=position]').textContent.startsWith('instant 6')")
    shown = gpt.page.inner_text("[data-q=allocated]")

    assert shown == f"{int(known(gpt.root).allocated_bytes[60]) / 2**20:.1f} MiB"
    assert gpt.page.inner_text("[data-q=reserved]") == "512 MiB"


def test_the_keyboard_walks_the_steps_and_finds_the_peak(gpt: Any) -> None:
    gpt.go(f"/overview?run={gpt.run}&at=1").plotted()
    gpt.page.keyboard.press("j")
    gpt.until("document.querySelector('#ov-live').innerText.includes('step 0')")
    gpt.page.keyboard.press("j")
    gpt.until("document.querySelector('#ov-live').innerText.includes('step 1')")
    gpt.page.keyboard.press("p")
    peak = int(known(gpt.root).allocated_bytes.argmax())
    gpt.until(f"document.querySelector('#ov-live').innerText.includes('instant {peak}')")
    gpt.page.keyboard.press("?")
    assert gpt.page.locator("#help").is_visible()
    gpt.page.keyboard.press("Escape")
    gpt.page.keyboard.press("]")
    gpt.page.wait_for_selector(".icicle path.surface")
    gpt.page.keyboard.press("t")

    assert gpt.page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_keys_do_nothing_while_somebody_types(gpt: Any) -> None:
    gpt.go(f"/overview?run={gpt.run}").plotted()
    gpt.page.keyboard.press("/")
    gpt.page.keyboard.type("mlp tx")
    gpt.until("document.querySelectorAll('#ov-table .ag-center-cols-container .ag-row').length === 0")

    assert gpt.page.evaluate("document.documentElement.dataset.theme") == "light"


def test_a_box_of_the_icicle_becomes_the_root_and_crumbs_lead_back(gpt: Any) -> None:
    page = gpt.go(f"/peak?run={gpt.run}").page
    page.wait_for_selector(".icicle path.surface")
    gpt.until("document.querySelector('.icicle .js-plotly-plot').vramscopeClicks")
    page.locator(".icicle g.slice", has_text="Attention.forward").first.click()
    gpt.until("document.querySelectorAll('#pk-crumbs button').length >= 3")
    page.locator("#pk-crumbs button").first.click()
    gpt.until("document.querySelectorAll('#pk-crumbs button').length === 1")


def test_a_row_shows_its_stack(gpt: Any) -> None:
    page = gpt.go(f"/peak?run={gpt.run}").page
    page.locator("#pk-table .ag-center-cols-container .ag-row").first.click()
    page.wait_for_selector("#pk-detail .frames")

    assert "model.py" in page.inner_text("#pk-detail")
    assert "of libraries and Python" in page.inner_text("#pk-detail")


def test_a_live_run_grows_and_the_zoom_stays(tmp_path: Path, runs: Any, serve_at: Any, visit: Any) -> None:
    program = runs.open_program(tmp_path / "live")
    program.begin()
    for _ in range(3):
        program.step()
    (name,) = Data(tmp_path).paths()
    visitor = visit(serve_at(tmp_path)).go(f"/overview?run={name}&axis=events")
    visitor.plotted()
    assert "running" in visitor.page.inner_text("#standing")
    last = visitor.trace("allocated", "x")[-1]
    program.step()
    visitor.until(
        "last => document.querySelector('#ov-graph .js-plotly-plot')._fullData"
        ".find(t => t.uid === 'allocated').x.at(-1) > last",
        last,
    )
    for round_ in range(6):
        span = [10 + round_, 60 + round_]
        visitor.relayout(**{"xaxis.range[0]": span[0], "xaxis.range[1]": span[1]})
        visitor.at_rest()
        with visitor.page.expect_response(lambda r: "ov-graph.figure" in (r.request.post_data or "")):
            program.step()
        visitor.at_rest()

        assert (
            visitor.page.evaluate(
                "document.querySelector('#ov-graph .js-plotly-plot')._fullLayout.xaxis.range"
            )
            == span
        )
        assert visitor.trace("allocated", "x")[-1] == span[1]
    program.writer.close(Outcome.FINISHED)
    visitor.until("document.querySelector('#standing').innerText.includes('ended')")


def test_an_empty_folder_says_what_to_do(tmp_path: Path, serve_at: Any, visit: Any) -> None:
    page = visit(serve_at(tmp_path)).go("/").page
    page.wait_for_selector(".state")

    assert "vramscope demo" in page.inner_text(".state")


def test_the_maximum_is_exact_at_random_zooms(gpt: Any) -> None:
    gpt.go(f"/overview?run={gpt.run}&axis=events").plotted()
    allocated, rng = known(gpt.root).allocated_bytes, np.random.default_rng(0)
    for _ in range(12):
        start, end = (int(n) for n in np.sort(rng.choice(len(allocated), 2, replace=False)))
        gpt.relayout(**{"xaxis.range[0]": start, "xaxis.range[1]": end})
        gpt.until(
            "b => document.querySelector('#ov-graph .js-plotly-plot')._fullData"
            ".find(t => t.uid === 'allocated').x.at(-1) === b",
            end,
        )

        assert max(gpt.trace("allocated")) * (1 << 20) == allocated[start : end + 1].max()
