"""The page of all ranks in a browser: the map is drawn, zooms, and a click shows the rank."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser
MAP = ".rank-map .js-plotly-plot"
DRAWN = f"document.querySelector('{MAP} .heatmaplayer image')"
MAKER = Path(__file__).parents[1] / "unit" / "dashboard" / "test_ranks_page.py"


@pytest.fixture(scope="module")
def job(tmp_path_factory: Any) -> Path:
    """The job of the unit tests: 40 ranks, the 18th with 300 MiB more, the sixth missing."""
    folder = tmp_path_factory.mktemp("fleet")
    code = (
        "import runpy, sys, pathlib; made = runpy.run_path(sys.argv[1]); run = pathlib.Path(sys.argv[2])\n"
        "[made['write'](run, rank, 40, 60) for rank in range(40) if rank != 5]"
    )
    subprocess.run([sys.executable, "-c", code, str(MAKER), str(folder / "job")], check=True, timeout=120)
    return folder


@pytest.fixture
def opened(job: Path, serve_at: Any, visit: Any) -> Any:
    from vramscope.dashboard.runs import run_id

    page = visit(serve_at(job)).go(f"/ranks?run={run_id(job / 'job')}")
    page.until(DRAWN)
    return page


def highest(page: Any) -> float:
    """The maximum of all cells that are drawn; the row of a missing rank has none."""
    rows = f"document.querySelector('{MAP}')._fullData[0].z"
    return page.page.evaluate(f"Math.max(...{rows}.flatMap(row => [...row]).filter(Number.isFinite))")


def test_a_zoom_is_in_the_address_and_a_click_shows_the_rank(opened: Any) -> None:
    page = opened.page
    whole = highest(opened)
    # A cell that is partly visible counts.
    zoom = {"yaxis.range[0]": 20.2, "yaxis.range[1]": 14.9, "xaxis.range[0]": 9.8, "xaxis.range[1]": 29.1}
    page.evaluate(f"Plotly.relayout(document.querySelector('{MAP}'), {json.dumps(zoom)})")
    # The window changes its size before the zoom is answered.
    page.evaluate(f"Plotly.relayout(document.querySelector('{MAP}'), {{ autosize: true }})")
    opened.until("location.search.includes('t0=10') && location.search.includes('b1=21')")
    opened.until(f"document.querySelector('{MAP}')._fullData[0].z.length === 6")
    box = page.locator(".rank-map .nsewdrag").bounding_box()
    # Rank 17 is the third of six rows.
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * 2.5 / 6)
    opened.until("document.getElementById('rk-readout').innerText.startsWith('rank 17 · step 19')")
    # Plotly has a click on what it hovers over, which it finds some time after the pointer has moved.
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * 3.5 / 6)
    opened.until("document.getElementById('rk-readout').innerText.startsWith('rank 18 · step')")
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] * 3.5 / 6)
    opened.until("document.querySelector('#rk-pair h3').innerText.startsWith('Rank 18 ')")
    opened.until("location.search.includes('rank=18')")
    page.reload()
    opened.until(DRAWN)

    assert whole == highest(opened)
    assert page.inner_text("#rk-pair h3").startswith("Rank 18 ")
    assert opened.complaints == []


def test_two_ranks_are_chosen_by_keyboard_alone(opened: Any) -> None:
    page = opened.page
    page.fill("#rk-rank", "3")
    page.keyboard.press("Enter")
    opened.until("document.querySelector('#rk-pair h3').innerText.startsWith('Rank 3 ')")
    page.fill("#rk-other", "17")
    page.keyboard.press("Enter")
    opened.until("document.querySelector('#rk-pair h3').innerText.includes('beside rank 17')")

    assert "−300 MiB" in page.inner_text("#rk-pair")
    # The address follows the page.
    opened.until("new URL(location).searchParams.get('other') === 'r17'")


def test_the_other_quantity_is_a_link(opened: Any) -> None:
    before = highest(opened)
    opened.page.click(".rank-map >> xpath=ancestor::section >> text=Reserved")
    opened.until("document.querySelector('#rk-map h3').innerText.includes('reserved')")
    opened.until(DRAWN)

    # Reserved bytes are 1 MiB more in every step of this job.
    assert round((highest(opened) - before) * 1024) in (1, 1024)


def test_plotly_starts_while_the_server_makes_the_page(job: Path, serve_at: Any, visit: Any) -> None:
    from vramscope.dashboard.runs import run_id

    opened = visit(serve_at(job))
    held: list[Any] = []
    answers = re.compile("_dash-update-component")

    def hold(route: Any) -> None:
        held.append(route)

    opened.page.route(answers, hold)
    opened.go(f"/ranks?run={run_id(job / 'job')}")
    opened.until("window.Plotly && window.Plotly.version")
    n_held = len(held)
    # The requests that are held go on.
    opened.page.unroute(answers)
    opened.until(DRAWN)

    assert n_held > 0
    assert opened.page.evaluate("document.querySelectorAll('script[src*=\"plotly.min\"]').length") == 1
    assert opened.complaints == []
