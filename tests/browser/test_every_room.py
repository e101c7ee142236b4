"""What must hold in every room, those of tomorrow included: they are taken from the registry.

One server and one page for all; the visitor goes from room to room as the menu's links do.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from vramscope.dashboard.data import Data
from vramscope.dashboard.pages import Page, pages

pytestmark = pytest.mark.browser
ROOMS = [pytest.param(room, id=room.name) for room in pages()]
THERE = ".claim, .state h2, .others, .runs .run-link, #al-table .ag-row, .page section:not(.working)"
TICK_MS = 400

LUMINANCE = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]"
TOO_WIDE = "document.documentElement.scrollWidth - innerWidth"
CUT_OFF = (
    "[...document.querySelectorAll('.kpi-value, .claim, .runs th, .diff th, .ag-center-cols-viewport')]"
    ".filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText)"
)
UNNAMED = (
    "[...document.querySelectorAll('button, a[href], input, select')]"
    ".filter(e => !(e.innerText || e.ariaLabel || e.title || e.labels?.length))"
    ".filter(e => !e.closest('.ag-root-wrapper')).map(e => e.outerHTML)"
)
LIVE_MARKUP = "main script, main iframe, main object, main a[href*=evil], main img[src*=evil], main svg a"
CONTRAST = """() => {
  const number = c => c.match(/[\\d.]+/g).map(Number);
  const channel = v => { v /= 255; return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4 };
  const light = c => {
    const [r, g, b] = number(c).map(channel);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const behind = e => {
    for (; e; e = e.parentElement) {
      const color = getComputedStyle(e).backgroundColor, parts = number(color);
      if (parts.length < 4 || parts[3] > .99) return color;
    }
    return 'rgb(255,255,255)';
  };
  const poor = new Set();
  for (const e of document.querySelectorAll('main *, aside *')) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || e.closest('svg, .figure, .shimmer') || !e.getClientRects().length) continue;
    if (e.closest('label:has(input:not(:checked))')) continue;
    const a = light(getComputedStyle(e).color), b = light(behind(e));
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) poor.add(`${e.className}: ${ratio.toFixed(2)}`);
  }
  return [...poor];
}"""
WALK = """() => {
  // Remembers what Tab reached: in which order, and whether it was to be seen.
  const isFirst = !window.walked;
  window.walked = { reached: [], unseen: [], backwards: [] };
  if (!isFirst) return;
  const ringed = e => {
    for (const shown of [e, e.closest('label'), e.closest('.search')]) {
      const style = shown && getComputedStyle(shown);
      if (style && style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2) return true;
    }
    return false;
  };
  const named = e => `${e.tagName} ${e.id} ${e.className} ${(e.innerText || '').slice(0, 30)}`;
  document.addEventListener('focusin', function (event) {
    const e = event.target, to = window.walked, last = to.reached.at(-1);
    if (!e.closest('main') || e.id === 'main') return;
    to.reached.push(e);
    if (!ringed(e)) to.unseen.push(named(e));
    const before = last && last.compareDocumentPosition(e) & Node.DOCUMENT_POSITION_PRECEDING;
    if (before) to.backwards.push(named(e));
  });
}"""
MISSED = """() => [...document.querySelectorAll(
    "main :is(a[href], button, input, select, summary, [tabindex='0'])")]
  .filter(e => !e.disabled && e.getClientRects().length && !e.closest('.ag-root-wrapper, .js-plotly-plot'))
  .filter(e => !window.walked.reached.includes(e))
  .map(e => e.outerHTML.slice(0, 160))"""


@dataclass
class House:
    """A dashboard over runs of every sort, and one visitor of all its pages."""

    root: Path
    visitor: Any
    runs: dict[str, str]

    @property
    def page(self) -> Any:
        return self.visitor.page

    def enter(self, room: Page, run: str, **more: str) -> Any:
        """Follow a link to the page."""
        asked = {"run": self.runs[run], **more} if room.about_run else {}
        self.visitor.follow(room.path + "?" + "&".join(f"{key}={value}" for key, value in asked.items()))
        self.page.wait_for_selector(THERE)
        self.visitor.at_rest()
        return self.page


def torn(path: Path) -> None:
    """The process died in the middle of a write."""
    (events,) = path.glob("rank0/events-*")
    whole = events.read_bytes()
    events.write_bytes(whole[: len(whole) * 2 // 3])


@pytest.fixture(scope="module")
def house(
    tmp_path_factory: pytest.TempPathFactory, runs: Any, chromium: Any, served: Any, visit_class: Any
) -> Iterator[House]:
    root = tmp_path_factory.mktemp("house")
    runs.recorded(root / "gpt", steps=12)
    runs.recorded(root / "empty", steps=0)
    torn(runs.recorded(root / "torn", steps=12))
    runs.recorded(root / "<b>odd", steps=3, names=runs.HOSTILE)
    runs.thinned(root / "thin")
    with served(root, idle_ms=TICK_MS) as base:
        names = {path.name: name for name, path in Data(root).runs.paths().items()}
        page = chromium.new_page(viewport={"width": 1280, "height": 800})
        visitor = visit_class(page, base).go("")
        page.wait_for_selector(".runs .run-link")
        yield House(root, visitor, names)
        page.close()


@pytest.fixture(autouse=True)
def _silence(house: House) -> Iterator[None]:
    """No room writes an error, and none asks another machine: names resolve to nothing there."""
    visitor = house.visitor
    del visitor.complaints[:], visitor.external[:]
    yield
    assert visitor.complaints == []
    assert visitor.external == []


@pytest.mark.parametrize("room", ROOMS)
def test_it_is_readable_in_both_themes_and_at_all_widths(house: House, room: Page) -> None:
    page = house.enter(room, "gpt")
    for theme, width in (("light", 1280), ("dark", 2560), ("light", 768), ("dark", 390)):
        page.set_viewport_size({"width": width, "height": 800})
        house.visitor.theme(theme)
        house.visitor.at_rest()

        assert (page.evaluate(LUMINANCE) < 60) == (theme == "dark")
        assert page.evaluate(CONTRAST) == []
        assert page.evaluate(TOO_WIDE) <= 1
        if width > 600:  # on a phone a grid scrolls within its panel
            assert page.evaluate(CUT_OFF) == []
    page.set_viewport_size({"width": 1280, "height": 800})
    house.visitor.theme("light")

    assert page.evaluate(UNNAMED) == []
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.locator("h1").count() == 1
    assert page.title().endswith("vramscope")


SHIFTED = """
  window.shifted = 0;
  new PerformanceObserver(list => { for (const each of list.getEntries()) window.shifted += each.value })
    .observe({ type: 'layout-shift', buffered: true });
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("room", ROOMS)
def test_little_moves_while_a_page_comes_to_a_large_screen(house: House, chromium: Any, room: Page) -> None:
    """Where all of a page is in view, all that moves counts; 0.1 is called good."""
    page = chromium.new_page(viewport={"width": 2560, "height": 1440})
    page.add_init_script(SHIFTED)
    visitor = type(house.visitor)(page, house.visitor.base).go(f"{room.path}?run={house.runs['gpt']}")
    page.wait_for_selector(THERE)
    visitor.at_rest()
    shifted = page.evaluate("window.shifted")
    page.close()

    assert shifted <= 0.05


@pytest.mark.parametrize("room", ROOMS)
def test_an_empty_run_is_explained_in_words(house: House, room: Page) -> None:
    page = house.enter(room, "empty")
    if not room.about_run:
        assert "no events" in page.locator("tr:has-text('empty')").inner_text()
        return

    assert len(page.inner_text("#page .state h2")) > 5
    assert len(page.inner_text("#page .state")) > 60


@pytest.mark.parametrize("room", ROOMS)
def test_a_torn_run_shows_what_is_left_and_says_so(house: House, room: Page) -> None:
    page = house.enter(room, "torn")
    if not room.about_run:
        page.locator("tr:has-text('torn') svg.spark").wait_for()
        return

    assert "never finished" in page.text_content(".notes")
    assert page.locator("#page :is(.claim, .panel, .state h2)").count()


@pytest.mark.parametrize("room", ROOMS)
def test_a_thinned_run_says_so(house: House, room: Page) -> None:
    page = house.enter(room, "thin")
    if not room.about_run:
        assert "286 MiB" in page.locator("tr:has-text('thin')").inner_text()
        return

    assert "was thinned to stay below" in page.text_content(".notes")


@pytest.mark.parametrize("room", ROOMS)
def test_hostile_names_are_text(house: House, room: Page) -> None:
    page = house.enter(room, "<b>odd", by="line")

    assert page.evaluate("window.pwned") is None
    assert page.locator(LIVE_MARKUP).count() == 0
    assert "<b>odd" in page.inner_text("main")
    assert page.evaluate(TOO_WIDE) <= 1


def settled_text(page: Any) -> str:
    """The text of the page once it no longer changes: tables ask for their rows when they are shown."""
    before = ""
    for _ in range(40):
        text = page.inner_text("#page")
        if text == before:
            break
        before = text
        page.wait_for_timeout(400)
    return before


@pytest.mark.parametrize("room", ROOMS)
def test_a_run_deleted_while_open_is_reported(house: House, room: Page) -> None:
    page = house.enter(room, "gpt")
    shown = len(settled_text(page))
    shutil.move(house.root / "gpt", house.root.parent / "gone")
    try:
        if room.about_run:
            page.wait_for_selector(".banner")
            assert "moved or deleted" in page.inner_text(".banner")
            assert len(page.inner_text("#page")) == shown
        else:
            house.visitor.until(
                "![...document.querySelectorAll('.run-link')].some(e => e.innerText === 'gpt')"
            )
    finally:
        shutil.move(house.root.parent / "gone", house.root / "gpt")
    page.wait_for_selector(".banner", state="detached")
    if not room.about_run:  # the next room is entered when the folder was searched again
        house.visitor.until("[...document.querySelectorAll('.run-link')].some(e => e.innerText === 'gpt')")
    # The browser itself logs the answer to what the page requested before it knew: there is no such run.
    complaints = house.visitor.complaints
    complaints[:] = [each for each in complaints if "status of 404" not in each]


@pytest.mark.parametrize("room", ROOMS)
def test_the_keyboard_reaches_everything_in_order_and_is_never_caught(house: House, room: Page) -> None:
    page = house.enter(room, "gpt")
    page.evaluate(WALK)
    page.evaluate("document.querySelector('#page').firstElementChild.dataset.isFirst = 'yes'")
    page.keyboard.press("Tab")
    if page.evaluate("document.activeElement.className") != "skip":
        page.evaluate("document.querySelector('.skip').focus()")
    page.keyboard.press("Enter")
    for _ in range(90):
        page.keyboard.press("Tab")
        if page.evaluate("!document.activeElement.closest('main')"):
            break

    assert page.evaluate("!document.activeElement.closest('main')"), "caught"
    house.visitor.at_rest()
    assert page.locator("#page > [data-is-first]").count() == 1, "laid out again"
    assert page.evaluate("window.walked.unseen") == []
    assert page.evaluate("window.walked.backwards") == []
    assert page.evaluate(MISSED) == []


@pytest.mark.parametrize("room", ROOMS)
def test_every_key_of_the_list_does_no_harm_and_help_closes(house: House, room: Page) -> None:
    page = house.enter(room, "gpt")
    page.evaluate("document.activeElement.blur()")
    for key in ("j", "k", "p", "w", "d", "a", "s", "0"):
        page.keyboard.press(key)
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#help").is_visible()
    if page.locator("main .search").count():
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.tagName") == "INPUT"
        page.evaluate("document.activeElement.blur()")


def test_enter_and_space_work_links_buttons_boxes_and_rows(house: House) -> None:
    rooms = {room.name: room for room in pages()}
    page = house.enter(rooms["overview"], "gpt")
    for key, theme in (("Enter", "dark"), ("Space", "light")):
        page.locator("#theme-button").focus()
        page.keyboard.press(key)
        assert page.evaluate("document.documentElement.dataset.theme") == theme
    box = page.locator("#ov-legend input").first
    was = box.is_checked()
    box.focus()
    page.keyboard.press("Space")
    house.visitor.until("was => document.querySelector('#ov-legend input').checked !== was", was)
    page.locator("#ov-table .ag-center-cols-container .ag-cell").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector("#inspector .frames")
    page.keyboard.press("Escape")
    assert not page.locator("#inspector").is_visible()
    page.locator("#ov-opening .to-code").first.focus()
    page.keyboard.press("Enter")
    # What the inspector showed before is there until the answer comes.
    house.visitor.until("document.querySelector('#inspector-body').innerText.includes('model.py:10')")
    page.keyboard.press("Escape")
    assert not page.locator("#inspector").is_visible()
    page.locator("#menu a:has-text('Peak')").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".icicle .box")

    assert page.evaluate("location.pathname") == "/peak"
