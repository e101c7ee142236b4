"""Charts that are drawn without Plotly: their values, clicks, zoom and files."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from vramscope.dashboard.address import Address
from vramscope.dashboard.data import Data

from vramscope.units import format_bytes

pytestmark = pytest.mark.browser
DRAWN = "#ph-graph[data-ready]"
TIP = "document.querySelector('#raster-tip:not([hidden])')?.innerText"


@pytest.fixture(scope="module")
def guest(staying_with_run: Any) -> Iterator[Any]:
    with staying_with_run("plotted", 12) as visitor:
        yield visitor


@pytest.fixture
def phases(guest: Any, turn_of: Any) -> Iterator[Any]:
    """A visitor of the page Phases of a run of 12 steps."""
    with turn_of(guest):
        guest.go(f"/phases?run={guest.run}").page.wait_for_selector(DRAWN)
        guest.page.wait_for_selector("#ph-stack[data-ready]")
        yield guest


def pointed(visitor: Any, chart: str, share: float) -> list[str]:
    """What is shown at that share of the width of a chart, line by line."""
    visitor.page.locator(chart).scroll_into_view_if_needed()
    box = visitor.page.locator(chart).bounding_box()
    visitor.page.mouse.move(box["x"] + 72 + share * (box["width"] - 88), box["y"] + box["height"] / 2)
    return visitor.until(TIP).splitlines()


def test_the_pointer_shows_the_peak_of_the_step(phases: Any) -> None:
    (run,) = Data(phases.root).runs.paths()
    recording = Data(phases.root).view(Address(run=run)).recording
    allocated, steps = recording.timeline().allocated_bytes, recording.steps
    # Counted from the events, without the analysis that the chart is made of.
    highest = {
        f"step {number}": format_bytes(int(allocated[start : end + 1].max()))
        for number, start, end in zip(steps.index, steps.start_event, steps.end_event, strict=True)
    }
    seen = {}
    for share in np.linspace(0.01, 0.99, 25):
        title, *values = pointed(phases, "#ph-graph", float(share))
        seen[title] = next(value for value in values if value.startswith("step ")).removeprefix("step ")

    assert seen == highest


def test_the_areas_of_a_step_add_up_to_what_was_allocated(phases: Any) -> None:
    (run,) = Data(phases.root).runs.paths()
    allocated = Data(phases.root).view(Address(run=run)).recording.timeline().allocated_bytes
    for share in (0.1, 0.5, 0.9):
        title, *values = pointed(phases, "#ph-stack", share)
        event = int(re.sub(r"\D", "", title))

        assert values[0] == f"together {format_bytes(int(allocated[event]))}"
        assert len(values) > 2


def test_a_click_selects_the_step_and_a_drag_looks_closer(phases: Any) -> None:
    page = phases.page
    title, *_ = pointed(phases, "#ph-graph", 0.3)
    page.mouse.down()
    page.mouse.up()
    phases.until("title => document.querySelector('#ph-phases h3').innerText.startsWith(title)",
                 f"{title.capitalize()} by phase")  # fmt: skip
    chosen = page.inner_text("#ph-phases h3")
    pointed(phases, "#ph-graph", 0.5)
    page.mouse.down()
    box = page.locator("#ph-graph").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 20, box["y"] + box["height"] / 2, steps=3)
    page.mouse.up()
    first, *_ = pointed(phases, "#ph-graph", 0.02)

    assert 5 <= int(first.split()[1]) <= 7
    assert page.inner_text("#ph-phases h3") == chosen
    page.mouse.dblclick(box["x"] + 74, box["y"] + box["height"] / 2)
    first, *_ = pointed(phases, "#ph-graph", 0.02)
    assert int(first.split()[1]) <= 1


def test_it_is_drawn_where_plotly_never_comes(guest: Any, visit: Any) -> None:
    opened = visit(guest.base)
    opened.page.route(re.compile("plotly.min"), lambda _: None)
    opened.go(f"/phases?run={guest.run}").page.wait_for_selector(DRAWN)
    inked = (
        "(() => { const { width, height } = document.querySelector('#ph-graph canvas');"
        " return document.querySelector('#ph-graph canvas').getContext('2d')"
        ".getImageData(0, 0, width, height).data.some(Boolean) })()"
    )

    assert opened.page.evaluate(inked)
    assert opened.page.evaluate("!window.Plotly || !window.Plotly.version")


def test_a_theme_and_a_file_have_the_whole_chart(phases: Any, tmp_path: Path) -> None:
    phases.theme("dark")
    for word in ("PNG", "SVG", "PDF"):
        with phases.page.expect_download() as download:
            phases.page.locator(f"#ph-graph-frame .save:has-text('{word}')").evaluate("b => b.click()")
        download.value.save_as(tmp_path / word)
    phases.theme("light")

    assert (tmp_path / "PNG").read_bytes().startswith(b"\x89PNG")
    parts = list(ET.parse(tmp_path / "SVG").iter())
    words = {part.text for part in parts if part.tag.endswith("text")}
    assert {"Peaks by step", "forward", "backward", "step 10", "0 MiB"} <= words
    assert len([part for part in parts if part.tag.endswith("path") and part.get("stroke")]) >= 4
    printed = (tmp_path / "PDF").read_bytes().decode("latin-1")
    assert printed.startswith("%PDF-1.4")
    assert all(
        f"({word})" in printed for word in ("Peaks by step", "forward", "backward", "step 10", "0 MiB")
    )
    at = [int(row.split()[0]) for row in printed.split("xref\n", 1)[1].splitlines()[2:8]]
    assert [printed[begin:].split()[0] for begin in at] == [str(number) for number in range(1, 7)]


def test_the_numbers_of_a_chart_are_copied_exactly(phases: Any) -> None:
    (run,) = Data(phases.root).runs.paths()
    recording = Data(phases.root).view(Address(run=run)).recording
    phases.page.evaluate("navigator.clipboard.writeText = async text => { window.copied = text; }")
    phases.page.locator("#ph-graph-frame .save:text-is('Numbers')").evaluate("b => b.click()")
    head, *rows = (row.split("\t") for row in phases.until("window.copied").splitlines())
    peaks = recording.step_peaks().per_step.allocated_bytes

    assert head == ["series", "step", "bytes"]
    steps = [(int(step), int(n_bytes)) for series, step, n_bytes in rows if series == "step"]
    assert steps == list(zip(recording.steps.index.tolist(), peaks.tolist(), strict=True))
