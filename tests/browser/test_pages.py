"""The pages beyond the overview, as a person meets them: bands, segments, steps, leaks, the report."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from vramscope.dashboard.address import Address
from vramscope.dashboard.data import Data
from vramscope.dashboard.report.document import document

from vramscope import load
from vramscope.model.recording import Outcome

pytestmark = pytest.mark.browser
RASTER = "window.vramscope && window.vramscope.rasterOf('{}') ? 1 : 0"


@pytest.fixture(scope="module")
def guest(staying_with_run: Any) -> Iterator[Any]:
    with staying_with_run("trained", 40) as visitor:
        yield visitor


@pytest.fixture
def trained(guest: Any, turn_of: Any) -> Iterator[Any]:
    """A visitor of a run of 40 steps."""
    with turn_of(guest):
        yield guest


def lifetimes(folder: Path) -> Any:
    data = Data(folder)
    return data.ask(data.view(Address(run=next(iter(data.runs.paths())))), "lifetimes")


def test_the_band_under_the_pointer_is_named_and_selected(trained: Any) -> None:
    page = trained.go(f"/allocations?run={trained.run}&axis=events&t0=100&t1=400").page
    trained.until(RASTER.format("al-graph"))
    box = trained.plot()
    x, y = box["x"] + 0.31 * box["width"], box["y"] + 0.95 * box["height"]
    page.mouse.move(x, y)
    page.wait_for_selector(".raster-tip:not([hidden])")
    tip = page.inner_text(".raster-tip")
    page.mouse.click(x, y)
    page.wait_for_selector("#inspector .fact-list")

    assert "__init__" in tip
    assert "20.0 MiB" in tip
    assert "20.0 MiB" in page.inner_text("#inspector")


def test_random_pixels_are_the_allocation_that_a_count_says(trained: Any) -> None:
    page = trained.go(f"/allocations?run={trained.run}&axis=events").page
    trained.until(RASTER.format("al-graph"))
    found, rng = lifetimes(trained.root), np.random.default_rng(5)
    probe = """([u, v]) => { const its = window.vramscope.rasterOf('al-graph'), { w, h } = its.data;
        const column = Math.floor(u * w), row = Math.floor(v * h);
        const hit = window.vramscope.pixelOf(its.data, column, row);
        return [hit.id, hit.instant, its.box.lo + (h - row - 0.5) * (its.box.hi - its.box.lo) / h] }"""
    for at in rng.random((60, 2)).tolist():
        row, instant, byte = page.evaluate(probe, at)
        live = np.flatnonzero(found.allocated_at(instant))
        place = int(np.searchsorted(np.cumsum(found.block_size[live]), byte, side="right"))

        assert row == (live[place] if place < len(live) else -1)


def test_what_is_searched_for_is_found_and_kept_in_the_address(trained: Any) -> None:
    page = trained.go(f"/allocations?run={trained.run}").page
    trained.until(RASTER.format("al-graph"))
    page.keyboard.press("/")
    page.keyboard.type("mlp size>1MiB")
    trained.until("document.querySelector('#al-heading').innerText.includes('160 found')")

    assert "q=mlp" in page.url
    # The picture is asked for after the heading is written.
    flags = "Array.from(window.vramscope.rasterOf('al-graph').data.flags)"
    assert trained.until(f"{flags}.some(flag => flag === 2 || flag === 4)")


def test_what_is_live_follows_the_instant_and_a_line_leads_to_its_blocks(trained: Any) -> None:
    page = trained.go(f"/allocations?run={trained.run}&at=100&group=line").page
    page.click("#al-live")
    trained.until("document.querySelector('#al-heading').innerText.includes('found live')")
    found = lifetimes(trained.root)

    assert page.input_value("#al-search-box") == "live:100"
    page.evaluate("window.vramscope.store.choose(250)")
    said = f"{int(found.allocated_at(250).sum())} found live"
    trained.until("said => document.querySelector('#al-heading').innerText.startsWith(said)", said)
    page.click("#al-table .ag-center-cols-container .ag-row")
    trained.until("document.querySelector('#al-search-box').value.includes('line:')")
    trained.until("document.querySelector('[data-group=\"\"]').getAttribute('aria-pressed') === 'true'")

    trained.until("location.search.includes('q=live%3A250+line%3A')")

    assert "group=" not in page.url


def test_a_search_without_a_hit_says_so_in_the_table(trained: Any) -> None:
    page = trained.go(f"/allocations?run={trained.run}&q=nosuchfunction").page
    page.wait_for_selector(
        "#al-table .ag-overlay-no-rows-center, #al-table .ag-overlay-no-matching-rows-center"
    )

    assert page.inner_text("#al-table .ag-overlay") == "No allocation matches."


def test_the_zoom_in_bytes_is_in_the_address_and_a_link_restores_it(trained: Any) -> None:
    page = trained.go(f"/allocations?run={trained.run}&axis=events").page
    trained.until(RASTER.format("al-graph"))
    trained.at_rest()
    page.evaluate("edges => window.vramscope.timeline.look(...edges)", [40, 90, 20 << 20, 60 << 20])
    trained.until("new URL(location).searchParams.get('b1')")
    assert f"b0={20 << 20}&b1={60 << 20}" in page.url
    page.reload()
    trained.until(RASTER.format("al-graph"))
    box = page.evaluate("window.vramscope.rasterOf('al-graph').box")

    assert (box["a"], box["b"], box["lo"], box["hi"]) == (40, 90, 20 << 20, 60 << 20)
    trained.at_rest()
    page.keyboard.press("0")
    trained.until("!new URL(location).searchParams.get('b1') && !new URL(location).searchParams.get('t1')")


def test_no_letter_is_moved_however_fast_one_types(trained: Any) -> None:
    page = trained.go(f"/allocations?run={trained.run}").page
    trained.until(RASTER.format("al-graph"))
    text = "attention size>1MiB life<20s forward alive"
    for pause in (0, 7, 120):
        page.fill("#al-search-box", "")
        page.keyboard.type(text, delay=pause)
        trained.until(f"new URL(location).searchParams.get('q') === {text!r}")

        assert page.input_value("#al-search-box") == text


def test_segments_are_scrubbed(trained: Any) -> None:
    page = trained.go(f"/fragmentation?run={trained.run}&axis=events&at=3").page
    trained.until(RASTER.format("fr-map"))
    page.wait_for_selector("#fr-track[data-ready]")
    page.locator("#fr-scrub").focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    trained.until("window.vramscope.rasterOf('fr-map').data.instants[0] > 3")
    trained.until("+new URL(location).searchParams.get('at') > 3")

    assert "512 MiB" in page.inner_text("[data-field=sums]")


def test_the_tables_are_those_of_the_instant_where_the_slider_is_let_go(trained: Any) -> None:
    page = trained.go(f"/fragmentation?run={trained.run}&axis=events&at=3").page
    trained.until(RASTER.format("fr-map"))
    trained.at_rest()
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    tables = ("#fr-jump", "#fr-pins-heading", "#fr-pins .ag-center-cols-container")
    before = [page.inner_text(each) for each in tables]
    page.locator("#fr-scrub").focus()
    # To the end of the slider, one step back: events in between have no instant of their own on the slider.
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    trained.until("+new URL(location).searchParams.get('at') > 3")
    trained.at_rest()
    shown = [page.inner_text(each) for each in tables]

    assert shown != before
    # The answer with the picture has the exact levels of the instant too.
    assert not [url for url in requested if "only=instant" in url]
    trained.go(f"/fragmentation?run={trained.run}&axis=events&at={at_in_address(page)}")
    trained.until(RASTER.format("fr-map"))
    trained.at_rest()

    assert [page.inner_text(each) for each in tables] == shown


def test_the_parts_of_reserved_memory_are_areas_of_the_timeline(trained: Any) -> None:
    page = trained.go(f"/fragmentation?run={trained.run}&axis=events&at=3").page
    trained.until(RASTER.format("fr-map"))
    trained.plotted()
    (recording,) = load(next(iter(Data(trained.root).runs.paths().values()))).recordings
    parts = recording.fragmentation().parts
    page.locator("#fr-scrub").focus()
    page.keyboard.press("ArrowRight")
    trained.until("+new URL(location).searchParams.get('at') > 3")
    trained.at_rest()
    # A zoom to both sides of the instant: few enough events that each is drawn.
    at = at_in_address(page)
    first, last = at - 3, at + 40
    trained.look(first, last)
    total = np.zeros(last + 1 - first)
    for name in ("requested", "rounding", "pending", "inactive_split", "releasable"):
        found = trained.drawn(name)
        level = np.array(found["y"])[np.searchsorted(found["x"], np.arange(first, last + 1), "right") - 1]
        assert np.array_equal(level, getattr(parts, f"{name}_bytes")[first : last + 1]), name
        total += level

    assert np.array_equal(total, recording.timeline().reserved_bytes[first : last + 1])
    box = trained.plot()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    trained.until("document.querySelector('#fr-track .track-tip').innerText.includes('inactive split')")
    trained.until(f"document.querySelector('#fr-scrub').value === '{round(1000 * 3 / 43)}'")


def test_plain_parts_are_renewed_and_leave_nothing_on_other_pages(trained: Any) -> None:
    page = trained.go(f"/peak?run={trained.run}&at=40").page
    page.wait_for_selector("#pk-bars .part-list dt")
    parts = page.locator("#pk-bars dt").all_inner_texts()[:5]
    before = page.inner_text("#pk-bars")
    page.keyboard.press("p")
    trained.until("old => document.querySelector('#pk-bars').innerText !== old", before)
    assert page.locator("#pk-bars dt").all_inner_texts()[:5] == parts
    assert page.locator("#pk-bars .pair > .panel").count() == 2

    for word in ("Phases", "Overview", "Peak"):
        page.click(f"#menu a:text-is('{word}')")
        page.wait_for_selector(f"#menu a.here:text-is('{word}')")
        trained.at_rest()
        assert page.locator(".part-list").count() == (2 if word == "Peak" else 0)
        assert page.locator(".strip-values .readings").count() == (word != "Overview")


def at_in_address(page: Any) -> int:
    return int(page.evaluate("new URL(location).searchParams.get('at')"))


@pytest.mark.parametrize("path", ["fragmentation", "peak"])
def test_a_moment_of_a_short_run_is_in_fractions_of_a_second(trained: Any, path: str) -> None:
    trained.go(f"/{path}?run={trained.run}&at=40")

    words = trained.until("document.querySelector('.chart [data-q=position]')?.textContent")
    assert words.endswith((" ms", " µs"))


def test_a_step_is_looked_into_by_keyboard(trained: Any) -> None:
    page = trained.go(f"/phases?run={trained.run}&at=200").page
    page.wait_for_selector("#ph-inside h3")
    before = page.inner_text("#ph-inside h3")
    page.keyboard.press("j")
    trained.until("was => document.querySelector('#ph-inside h3').innerText !== was", before)

    number = int(before.split()[3].rstrip(","))
    assert page.inner_text("#ph-inside h3").startswith(f"Anatomy of step {number + 1}, by category")
    assert page.inner_text("#ph-phases h3") == f"Step {number + 1} by phase"


def test_allocations_follow_a_growing_run_and_keep_the_zoom(
    tmp_path: Path, runs: Any, serve_at: Any, visit: Any
) -> None:
    program = runs.open_program(tmp_path / "live")
    program.begin()
    program.step()
    visitor = visit(serve_at(tmp_path))
    (name,) = Data(tmp_path).runs.paths()
    page = visitor.go(f"/allocations?run={name}&axis=events&t0=5&t1=20").page
    visitor.until(RASTER.format("al-graph"))
    heading = page.inner_text("#al-heading")
    program.step()
    visitor.until("was => document.querySelector('#al-heading').innerText !== was", heading)
    program.writer.close(Outcome.FINISHED)

    assert page.evaluate("window.vramscope.rasterOf('al-graph').box.a") == 5
    assert page.evaluate("window.vramscope.rasterOf('al-graph').box.b") == 20


def test_the_report_works_from_disk(tmp_path: Path, runs: Any, chromium: Any) -> None:
    file = tmp_path / "report.html"
    file.write_text(document(load(runs.recorded(tmp_path / "gpt", steps=3, names=runs.HOSTILE))))
    page = chromium.new_page()
    asked, complaints = [], []
    page.on("request", lambda r: asked.append(r.url))
    page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready=yes]", state="attached")
    drawn = page.locator(".drawing .main-svg").count()
    pwned = page.evaluate("window.pwned")
    page.close()

    assert drawn
    assert pwned is None
    assert complaints == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


def test_what_the_inspector_shows_is_taken_along(trained: Any) -> None:
    page = trained.go(f"/allocations?run={trained.run}&q=__init__").page
    page.click("#al-table .ag-center-cols-container .ag-row")
    page.wait_for_selector("#inspector ol.frames")
    page.evaluate(
        "window.taken = []; Object.defineProperty(navigator, 'clipboard',"
        " { value: { writeText: text => { window.taken.push(text); return Promise.resolve(); } } })"
    )
    for what in ("text", "stack", "link"):
        page.click(f"#inspector [data-copy={what}]")
    page.hover("#al-table")
    page.click(".has-saves .save:text('Copy')")
    text, stack, link, rows = page.evaluate("window.taken")

    assert "- Size: 20.0 MiB requested" in text
    assert "  model.py:5  __init__" in text
    assert "/home/me" not in text
    assert "/home/me/model.py:5  __init__" in stack
    assert "sel=b0" in link
    head, first = (line.split("\t") for line in rows.splitlines()[:2])
    assert (head[0], head[-1]) == ("Line", "Lived")
    assert first[0] == "__init__ model.py:5"
    assert first[head.index("Block (bytes)")] == str(20 << 20)


def test_figures_and_tables_can_be_saved(trained: Any, tmp_path: Path) -> None:
    page = trained.go(f"/allocations?run={trained.run}").page
    trained.until(RASTER.format("al-graph"))
    page.wait_for_selector("#al-table .ag-row")
    kept = {}
    for word, frame in (("PNG", "#al-graph-frame"), ("SVG", "#al-graph-frame"), ("CSV", ".table-frame")):
        page.hover(frame)
        with page.expect_download() as download:
            page.click(f"{frame} .save:text('{word}')")
        kept[word] = tmp_path / f"kept.{word.lower()}"
        download.value.save_as(kept[word])

    assert kept["PNG"].read_bytes().startswith(b"\x89PNG")
    assert "data:image/png" in kept["SVG"].read_text()
    assert kept["SVG"].read_text().count(">highest ") == 2  # once as an outline that keeps the words readable
    lines = kept["CSV"].read_text(encoding="utf-8-sig").splitlines()
    assert lines[0].startswith('"Line","Module","Block (bytes)"')
    assert f'"__init__ model.py:5","","{20 << 20}"' in lines[1]


def test_the_icicle_is_saved_with_every_box_that_is_shown(trained: Any, tmp_path: Path) -> None:
    page = trained.go(f"/peak?run={trained.run}").page
    page.wait_for_selector("#pk-icicle .box")
    names = page.locator("#pk-icicle .box-name").all_inner_texts()
    page.hover("figure.icicle")
    for word in ("PNG", "SVG"):
        with page.expect_download() as download:
            page.click(f"figure.icicle .save:text('{word}')")
        download.value.save_as(tmp_path / word)

    assert (tmp_path / "PNG").read_bytes().startswith(b"\x89PNG")
    saved = [text.text for text in ET.parse(tmp_path / "SVG").iter() if text.tag.endswith("text")]
    assert len(names) > 4
    assert set(names) | {"Live memory by call"} <= set(saved)


def test_a_plain_table_is_saved_with_its_exact_bytes(trained: Any, tmp_path: Path) -> None:
    page = trained.go(f"/phases?run={trained.run}").page
    page.wait_for_selector("#ph-phases .save")
    with page.expect_download() as download:
        page.locator("#ph-phases .save").evaluate("button => button.click()")
    download.value.save_as(tmp_path / "phases.csv")
    lines = (tmp_path / "phases.csv").read_text().splitlines()

    assert lines[0].startswith('"Phase","Peak (bytes)"')
    assert f'"backward","{86 << 20}"' in "\n".join(lines)


def test_the_first_chart_of_a_long_recording_comes_before_what_takes_longer(
    runs: Any, tmp_path: Path, serve_at: Any, visit: Any
) -> None:
    for number, name in enumerate(("before", "after")):
        runs.recorded(tmp_path / name, steps=2 + number)
    after, before = sorted(Data(tmp_path).runs.paths())
    visitor = visit(serve_at(tmp_path, events_at_once=0))

    page = visitor.go(f"/fragmentation?run={after}").page
    page.click("text=Calls of the driver")
    page.wait_for_selector("#fr-calls .ag-row")
    assert "Step" in page.inner_text("#fr-jump") or "steps" in page.inner_text("#fr-jump")
    page = visitor.go(f"/compare?run={after}&other={before}").page
    page.wait_for_selector(".changes, #cp-icicle")
    assert "1 step only after" in page.inner_text("#cp-content .opening")
    assert page.locator("[aria-busy]").count() == 0


def test_another_instant_renews_the_parts_of_the_peak_and_keeps_chart_and_table(trained: Any) -> None:
    page = trained.go(f"/peak?run={trained.run}").page
    page.wait_for_selector("#pk-icicle .box")
    page.wait_for_selector("#pk-content .ag-root")
    trained.plotted()
    same = "document.querySelector('#pk-icicle').isSame"
    page.evaluate(f"{same} = document.querySelector('#pk-content .ag-root').isSame = true")
    first, heading = page.inner_text("#pk-content .claim"), page.inner_text("#pk-live")
    all_parts = [page.inner_text(part) for part in ("#pk-opening", "#pk-bars", "#pk-modules", "#pk-live")]
    page.focus(".track")
    page.keyboard.press("ArrowLeft")
    trained.until("old => document.querySelector('#pk-content .claim').innerText !== old", first)

    assert page.inner_text("#pk-live") != heading
    assert "below the peak" in page.inner_text("#pk-content .support")
    trained.at_rest()
    assert page.evaluate(f"{same} && document.querySelector('#pk-content .ag-root').isSame")
    # The page is laid out as it was at first, and React knows no other content.
    page.click("#pk-opening .segments a:has-text('Peak')")
    trained.until("old => document.querySelector('#pk-content .claim').innerText === old", first)
    assert all_parts == [
        page.inner_text(part) for part in ("#pk-opening", "#pk-bars", "#pk-modules", "#pk-live")
    ]
    page.evaluate("dash_clientside.set_props('pk-at', {data: 0})")
    page.wait_for_selector(".state:has-text('Nothing is live here')")
    page.click("text='Go to the peak'")
    page.wait_for_selector("#pk-icicle .box")
    assert page.inner_text("#pk-content .claim") == first
