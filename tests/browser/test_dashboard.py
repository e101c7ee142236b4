"""What a person meets on the overview, the peak and the list: zoom, click, keys, live runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vramscope.dashboard.address import Address
from vramscope.dashboard.answers import totals
from vramscope.dashboard.components.definitions import DEFINITION
from vramscope.dashboard.data import Data

from vramscope.model.marks import Phase
from vramscope.model.recording import Outcome
from vramscope.units import format_bytes

pytestmark = pytest.mark.browser


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
    (name,) = data.runs.paths()
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
    assert max(gpt.drawn()["y"]) == allocated.max()
    for start, end in ((100, 3000), (500, 560), (4000, 9000)):
        gpt.look(start, end)

        assert max(gpt.drawn()["y"]) == allocated[start : end + 1].max()
        gpt.until("edges => location.search.includes(edges)", f"t0={start}&t1={end}")


def test_the_table_follows_the_view_until_an_instant_is_chosen(gpt: Any) -> None:
    gpt.go(f"/overview?run={gpt.run}&axis=events").plotted()
    gpt.look(500, 560)
    top = 500 + int(known(gpt.root).allocated_bytes[500:561].argmax())
    gpt.until(f"document.querySelector('#ov-live').innerText.includes('instant {top}')")

    gpt.page.focus(".track")
    gpt.page.keyboard.press("ArrowRight")
    gpt.until(f"!document.querySelector('#ov-live').innerText.includes('instant {top}')")
    gpt.at_rest()
    chosen, asked = gpt.page.inner_text("#ov-live"), []
    gpt.page.on("request", lambda sent: asked.append("/api/parts" in sent.url))
    gpt.look(700, 760)
    gpt.at_rest()

    assert gpt.page.inner_text("#ov-live") == chosen
    assert asked
    assert not any(asked)


def test_a_long_run_shows_its_chart_first_and_the_rest_later(gpt: Any, serve_at: Any, visit: Any) -> None:
    at_once = gpt.go(f"/overview?run={gpt.run}").page
    gpt.plotted()
    texts = at_once.inner_text("#ov-opening"), at_once.inner_text("#ov-live")
    long = visit(serve_at(gpt.root, events_at_once=100)).go(f"/overview?run={gpt.run}")
    long.plotted()
    long.until("!document.querySelector('#page').innerText.includes('Counting')")
    long.until("text => document.querySelector('#ov-opening').innerText === text", texts[0])

    assert long.page.inner_text("#ov-live") == texts[1]
    assert long.page.locator("#ov-table .ag-row").count() > 2


def test_a_page_that_takes_long_says_so_and_comes_by_itself(gpt: Any, serve_at: Any, visit: Any) -> None:
    visitor = visit(serve_at(gpt.root, blank_s=0)).go(f"/overview?run={gpt.run}")
    page = visitor.page
    page.wait_for_selector(".working")
    visitor.plotted()
    page.click("#menu a:text('Peak')")
    page.wait_for_selector(".icicle .box")
    page.wait_for_selector(".working", state="detached")
    # On a busy machine two polls are answered "ready"; the second one brings nothing new.
    page.evaluate("document.querySelector('.icicle').dataset.isKept = 'yes'")
    with page.expect_response(lambda r: "menu.children" in (r.request.post_data or "")) as answer:
        page.evaluate("dash_clientside.set_props('ready', { data: { after: 99, url: 'again' } })")

    assert answer.value.status == 204
    assert page.locator(".icicle[data-is-kept]").count() == 1
    assert page.inner_text(".run-header")


def test_a_definition_comes_to_the_pointer_and_to_the_keyboard_and_goes_with_escape(gpt: Any) -> None:
    page = gpt.go(f"/overview?run={gpt.run}").page
    gpt.plotted()
    word = page.locator(".term", has_text="Peak allocated")
    word.hover()
    gpt.until("document.querySelector('#definition')?.hidden === false")
    hovered = page.inner_text("#definition")
    page.mouse.move(2, 2)
    gpt.until("document.querySelector('#definition').hidden")
    word.focus()
    described = word.get_attribute("aria-describedby")
    focused = page.inner_text("#definition")
    page.keyboard.press("Escape")

    assert hovered == focused == DEFINITION["allocated"]
    assert described == "definition"
    assert page.locator("#definition").is_hidden()
    assert word.get_attribute("aria-describedby") is None


def test_a_link_restores_zoom_and_instant(gpt: Any) -> None:
    gpt.go(f"/overview?run={gpt.run}&axis=events&t0=200&t1=900&at=500").plotted()

    shown = gpt.drawn()
    assert (shown["a"], shown["b"], shown["at"]) == (200, 900, 500)
    assert "instant 500" in gpt.page.inner_text("#ov-live")


@pytest.mark.parametrize("axis", ["time", pytest.param("events", marks=pytest.mark.exhaustive)])
def test_a_run_opens_at_its_first_step_and_a_button_opens_what_lies_before(
    tmp_path: Path, runs: Any, serve_at: Any, visit: Any, axis: str
) -> None:
    program = runs.open_program(tmp_path / "loads")
    program.begin()
    for _ in range(200):  # loading: 1 s and 600 events, of three steps of 2 ms and 60 events
        program.free(program.malloc(1 << 20))
        program.clock += 5_000_000
    n_before, first_s = program.n_events, (program.clock - runs.START_NS) / 1e9
    for _ in range(3):
        program.step()
    program.writer.close(Outcome.FINISHED)
    (name,) = Data(tmp_path).runs.paths()

    visitor = visit(serve_at(tmp_path)).go(f"/overview?run={name}&axis={axis}")
    visitor.page.wait_for_selector(".track-break:visible")
    visitor.plotted()
    opened, said = visitor.drawn(), visitor.page.inner_text(".track-break")
    visitor.page.click(".track-break")
    visitor.page.wait_for_selector(".track-break", state="hidden")
    visitor.plotted()
    whole = visitor.drawn()
    visitor.go(f"/overview?run={name}&axis={axis}&at=5").plotted()

    begins = n_before if axis == "events" else first_s
    assert opened["a"] == pytest.approx(begins, rel=0.001)
    assert opened["b"] == whole["b"] == visitor.drawn()["b"]
    assert said.startswith(
        f"◂ {n_before} events" if axis == "events" else f"◂ {first_s:.2f} s before the first step"
    )
    assert whole["a"] == visitor.drawn()["a"] == 0


def test_a_click_shows_what_was_live_there(gpt: Any) -> None:
    gpt.go(f"/overview?run={gpt.run}&axis=events&t0=0&t1=200").plotted()
    box = gpt.plot()
    gpt.page.mouse.click(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.5)
    gpt.until("new URL(location).searchParams.get('at')")
    at = int(gpt.page.evaluate("new URL(location).searchParams.get('at')"))
    gpt.until(f"document.querySelector('#ov-live').innerText.includes('instant {at}')")

    assert abs(at - 80) <= 2
    megabytes = int(known(gpt.root).allocated_bytes[at]) >> 20
    assert f"{megabytes:.1f} MiB in" in gpt.page.inner_text("#ov-live")


def test_a_chosen_instant_is_asked_for_alone_and_has_its_exact_level(gpt: Any) -> None:
    gpt.go(f"/overview?run={gpt.run}&axis=events&t0=0&t1=2000").plotted()
    gpt.at_rest()
    # By the clock of the page: under load the driver hears of a request when its answer is long there.
    before_ms, box = gpt.page.evaluate("performance.now()"), gpt.plot()
    gpt.page.mouse.click(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.5)
    gpt.until("new URL(location).searchParams.get('at')")
    gpt.page.mouse.move(2, 2)
    at = int(gpt.page.evaluate("new URL(location).searchParams.get('at')"))
    level = format_bytes(int(known(gpt.root).allocated_bytes[at]))
    gpt.until("level => document.querySelector('[data-q=allocated]').textContent === level", level)

    gpt.at_rest()
    entries = gpt.page.evaluate("performance.getEntriesByType('resource').map(e => [e.startTime, e.name])")
    asked = [url for start_ms, url in entries if start_ms >= before_ms and "/api/" in url]
    assert asked
    # The level comes with what is live there; the columns in view stay.
    assert all("/api/parts" in url or "only=instant" in url for url in asked)


def test_wheel_and_drag_move_the_view_and_every_page_shows_the_same(gpt: Any) -> None:
    page = gpt.go(f"/overview?run={gpt.run}&axis=events").page
    gpt.plotted()
    gpt.look(1000, 2000)
    box = gpt.plot()
    page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 60)
    page.mouse.wheel(0, -120)
    gpt.until("window.vramscope.timeline.drawn('allocated').b < 2000")
    zoomed = gpt.drawn()
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 60, steps=4)
    page.mouse.up()
    dragged = gpt.drawn()
    page.mouse.click(box["x"] + 0.4 * box["width"], box["y"] + 90)
    page.wait_for_selector("#inspector .fact-list")
    at = gpt.drawn()["at"]
    gpt.until("new URL(location).searchParams.get('t0') && new URL(location).searchParams.get('sel') === 'i'")
    shared = page.evaluate("Object.fromEntries(new URLSearchParams(location.search))")
    page.click("#menu a:text('Leaks')")
    gpt.until("location.pathname === '/leaks' && document.querySelector('#tl-track[data-ready]')")
    there = gpt.drawn()

    # What was under the pointer stays there; a drag by a quarter of the width moves by that.
    assert zoomed["a"] + 0.25 * (zoomed["b"] - zoomed["a"]) == pytest.approx(1250, abs=1.5)
    moved = 0.25 * (zoomed["b"] - zoomed["a"])
    assert dragged["a"] == pytest.approx(zoomed["a"] - moved, abs=1.5)
    assert f"instant {at:,}" in page.inner_text("#inspector")
    assert page.evaluate("Object.fromEntries(new URLSearchParams(location.search))") == shared
    assert [there[name] for name in ("a", "b", "at")] == [round(dragged["a"]), round(dragged["b"]), at]
    page.keyboard.press("Escape")
    assert not page.locator("#inspector").is_visible()


def test_a_page_that_chooses_an_instant_by_itself_keeps_the_zoom(gpt: Any) -> None:
    data = Data(gpt.root)
    found = data.ask(data.view(Address(run=gpt.run)), "fragmentation")
    unusable, edges = found.parts.inactive_split_bytes, (1000, 2000) if found.worst < 1000 else (100, 900)
    page = gpt.go(f"/overview?run={gpt.run}&axis=events&t0={edges[0]}&t1={edges[1]}").page
    gpt.plotted()
    page.click("#menu a:text('Fragmentation')")
    gpt.until("location.pathname === '/fragmentation' && document.querySelector('#fr-track[data-ready]')")
    gpt.until("new URL(location).searchParams.get('at')")
    gpt.at_rest()
    shown = gpt.drawn()

    assert (shown["a"], shown["b"]) == edges
    at = int(page.evaluate("new URL(location).searchParams.get('at')"))
    assert unusable[at] == unusable[edges[0] : edges[1] + 1].max()


@pytest.mark.parametrize("axis", ["events", "time"])
def test_an_address_keeps_its_zoom_where_its_instant_lies_outside(gpt: Any, axis: str) -> None:
    address = f"/overview?run={gpt.run}&axis={axis}&at=1500"
    gpt.go(address).plotted()
    first, last = gpt.page.evaluate("window.vramscope.timeline.whole()")
    position = gpt.until("window.vramscope.store.positionOf(1500)")
    scale = 1 if axis == "events" else 1e9
    edges = [round((position + share * (last - position)) * scale) for share in (0.2, 0.8)]
    assert first < position < last
    gpt.go(f"{address}&t0={edges[0]}&t1={edges[1]}").plotted()
    gpt.at_rest()
    opened = gpt.drawn()
    gpt.page.reload()
    gpt.plotted()
    gpt.at_rest()
    again = gpt.drawn()

    for shown in (opened, again):
        assert shown["at"] == 1500
        assert [round(shown["a"] * scale), round(shown["b"] * scale)] == edges
    in_address = "['t0', 't1'].map((name) => Number(new URL(location).searchParams.get(name)))"
    assert gpt.page.evaluate(in_address) == edges


def test_keys_zoom_at_the_chosen_instant(gpt: Any) -> None:
    gpt.go(f"/overview?run={gpt.run}&axis=events&at=400&t0=0&t1=2000").plotted()
    gpt.page.keyboard.press("w")
    gpt.until("window.vramscope.timeline.drawn('allocated').b < 2000")
    shown = gpt.drawn()

    # The instant stays at a fifth of the width.
    assert (400 - shown["a"]) / (shown["b"] - shown["a"]) == pytest.approx(0.2, abs=0.01)


def test_the_readout_follows_the_pointer(gpt: Any) -> None:
    gpt.go(f"/overview?run={gpt.run}&axis=events&t0=0&t1=200").plotted()
    box = gpt.plot()
    gpt.page.mouse.move(box["x"] + box["width"] * 0.3025, box["y"] + 40)
    gpt.until("document.querySelector('[data-q=position]').textContent.startsWith('instant 6')")
    shown = gpt.page.inner_text("[data-q=allocated]")

    assert shown == f"{int(known(gpt.root).allocated_bytes[60]) / 2**20:.1f} MiB"
    assert gpt.page.inner_text("[data-q=reserved]") == "512 MiB"


@pytest.mark.parametrize(
    ("after_ns", "words"),
    [(3_547_300_000, ("3.547 s", "3.55 s")), (754_730_000, ("754.7 ms", "755 ms")),
     (2_700_000_000_000, ("45.00 min", "45.0 min"))],
)  # fmt: skip
def test_the_browser_and_the_server_say_a_moment_in_the_same_unit(
    tmp_path: Path, runs: Any, serve_at: Any, visit: Any, after_ns: int, words: tuple[str, str]
) -> None:
    program = runs.open_program(tmp_path / "waits")
    program.begin()
    program.step()
    program.clock, at = runs.START_NS + after_ns, program.n_events + 1
    program.step()
    program.writer.close(Outcome.FINISHED)
    (name,) = Data(tmp_path).runs.paths()
    visitor = visit(serve_at(tmp_path)).go(f"/overview?run={name}&at={at}")
    visitor.plotted()

    read, said = words
    assert visitor.until("document.querySelector('[data-q=position]').textContent") == read
    assert f"Live at {said}" in visitor.until("document.querySelector('#ov-live')?.innerText")


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
    gpt.page.wait_for_selector(".icicle .box")
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
    page.wait_for_selector(".icicle .box")
    page.locator(".icicle .box", has_text="Attention.forward").first.click()
    gpt.until("document.querySelectorAll('#pk-crumbs button').length >= 3")
    page.locator("#pk-crumbs button").first.click()
    gpt.until("document.querySelectorAll('#pk-crumbs button').length === 1")


def test_the_icicle_is_walked_by_the_keyboard_below_its_callers(gpt: Any) -> None:
    page = gpt.go(f"/peak?run={gpt.run}").page
    page.wait_for_selector(".icicle .box")
    page.locator("figure.icicle").focus()
    read = []
    for key in ("", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowUp", "ArrowDown"):
        page.keyboard.press(key) if key else None
        gpt.until("document.querySelectorAll('.icicle .is-current').length === 1")
        read.append(page.inner_text(".icicle-words"))
    # 20 MiB of parameters and 64 of two layers, which train() calls.
    layers = [("Attention.forward" in text, "MLP.forward" in text) for text in read]
    assert "all live memory" in read[0]
    assert "train train.py:88" in read[1]
    assert sorted(layers[2:4]) == [(False, True), (True, False)]
    assert (read[4], read[5]) == (read[1], read[2])
    page.keyboard.press("Enter")
    gpt.until("new URL(location).searchParams.get('root')")
    gpt.until("document.querySelectorAll('.icicle .box').length === 3")  # its two callers stay
    assert page.evaluate("document.activeElement.className") == "figure icicle"
    assert page.inner_text(".icicle-words") == read[2]
    page.keyboard.press("Escape")
    gpt.until("document.querySelectorAll('#pk-crumbs button').length === 2")
    page.keyboard.press("Backspace")
    gpt.until("!new URL(location).searchParams.get('root')")


def test_a_row_shows_its_stack(gpt: Any) -> None:
    page = gpt.go(f"/peak?run={gpt.run}").page
    page.locator("#pk-table .ag-center-cols-container .ag-row").first.click()
    page.wait_for_selector("#inspector .frames")

    assert "model.py" in page.inner_text("#inspector")
    assert "of libraries and Python" in page.inner_text("#inspector")


def test_a_live_run_grows_and_the_zoom_stays(tmp_path: Path, runs: Any, serve_at: Any, visit: Any) -> None:
    program = runs.open_program(tmp_path / "live")
    program.begin()
    program.flush()
    (name,) = Data(tmp_path).runs.paths()
    visitor = visit(serve_at(tmp_path)).go(f"/phases?run={name}&axis=events")
    visitor.page.wait_for_selector(".state[data-waits]")
    for _ in range(3):
        program.step()
    visitor.page.wait_for_selector("#ph-opening .claim")
    visitor.page.click("#menu a:text('Overview')")
    visitor.page.wait_for_selector("#ov-track[data-ready]")
    visitor.plotted()
    assert "running" in visitor.page.inner_text("#standing")
    assert not visitor.page.is_visible("[data-phase='5']")
    last = visitor.drawn()["x"][-1]
    with program.phase(Phase.EVAL):
        program.free(program.malloc(1 << 20))
    program.step()
    visitor.until("last => window.vramscope.timeline.drawn('allocated').x.at(-1) > last", last)
    visitor.page.wait_for_selector("[data-phase='5']")
    for round_ in range(6):
        span = [10 + round_, 60 + round_]
        visitor.look(*span)
        with visitor.page.expect_response(lambda r: "/api/timeline" in r.url):
            program.step()
        visitor.at_rest()
        shown = visitor.drawn()

        assert [shown["a"], shown["b"]] == span
        assert shown["x"][-1] == span[1]
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
        if end - start < 4:
            continue  # the least width of a view
        gpt.look(start, end)

        assert max(gpt.drawn()["y"]) == allocated[start : end + 1].max()
