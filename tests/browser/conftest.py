"""Debian's Chromium without a GPU, and dashboards over runs made on the spot."""

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from time import monotonic
from types import ModuleType
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", "--disable-dev-shm-usage",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",  # the network is cut off
)  # fmt: skip
RUNS = Path(__file__).parents[1] / "unit" / "dashboard" / "conftest.py"
SAMPLES = Path(__file__).parents[2] / "sample_traces"


@pytest.fixture(scope="session")
def runs(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    """The builders of the unit tests."""
    return module_at(RUNS)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not Path(CHROMIUM).exists():
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=list(FLAGS), timeout=LONGEST_WAIT_S * 1000
        )
        yield browser
        browser.close()


@contextmanager
def _served(root: Path, **pace: Any) -> Iterator[str]:
    """The address of a dashboard over *root*; without a token, to keep addresses short."""
    from vramscope.dashboard import create_app
    from vramscope.dashboard.runs import Pace
    from vramscope.dashboard.server.security import Access
    from werkzeug.serving import make_server

    app = create_app(root, Access(token=None), Pace(**pace))
    server = make_server("127.0.0.1", 0, app.server, threaded=True)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="session")
def served() -> Callable[..., AbstractContextManager[str]]:
    """``with served(folder, idle_ms=…) as base:`` a dashboard, with another pace where that is named."""
    return _served


@pytest.fixture
def serve_at() -> Iterator[Callable[..., str]]:
    """``serve_at(folder, blank_s=…)``: the address of a dashboard that lasts as long as the test."""
    with ExitStack() as lasting:
        yield lambda root, **pace: lasting.enter_context(_served(root, **pace))


LONGEST_WAIT_S = 120.0
_IS_FUNCTION = re.compile(r"^\(?[\w\s,\[\]]*\)?\s*=>")
# Looked at by a timer, not with every frame: a hidden page has none.
_UNTIL = """arg => new Promise((done, fail) => {
  const check = %s, last = Date.now() + %d;
  (function look() {
    const found = check(arg);
    if (found) done(found);
    else if (Date.now() > last) fail(new Error('never true'));
    else setTimeout(look, 15);
  })();
})"""
# Nothing is moving, nothing was drawn for a tenth of a second, and no picture is on its way.
_AT_REST = """() => new Promise(done => {
  let timer;
  const watch = new MutationObserver(again), last = setTimeout(() => end(false), 1500);
  // The dot of a run that grows pulses for ever.
  const ends = a => a.playState === 'running' && a.effect.getComputedTiming().endTime < Infinity;
  const moving = () => document.querySelector('.working') || document.getAnimations().some(ends);
  function end(found) { watch.disconnect(); clearTimeout(timer); clearTimeout(last); done(found); }
  function again() { clearTimeout(timer); timer = setTimeout(() => end(!moving()), 100); }
  watch.observe(document, { childList: true, subtree: true, attributes: true, characterData: true });
  again();
})"""


@dataclass
class Visit:
    """A page with a memory of what it should not have done."""

    page: Any
    base: str
    complaints: list[str] = field(default_factory=list)
    external: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    """The addresses of every request so far."""
    n_awaited: int = 0
    """Requests that are not answered yet."""
    n_followed: int = 0

    def __post_init__(self) -> None:
        self.page.set_default_timeout(LONGEST_WAIT_S * 1000)
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda r: self._note(r.url))
        self.page.on("requestfinished", lambda _: self._answered())
        self.page.on("requestfailed", lambda _: self._answered())

    def go(self, path: str, theme: str = "light") -> "Visit":
        self.page.add_init_script(f"localStorage.setItem('vramscope-theme', '{theme}')")
        self.page.goto(self.base + path)
        return self

    def follow(self, url: str) -> None:
        """Go where a link of the menu would lead, without loading the scripts again; waits for the menu."""
        self.n_followed += 1  # the address that is shown already would not be opened again
        url += f"{'&' if '?' in url else '?'}visit={self.n_followed}"
        with self.page.expect_response(lambda r: "menu.children...top" in (r.request.post_data or "")):
            self.page.evaluate(
                "url => { history.pushState({}, '', url); dispatchEvent(new PopStateEvent('popstate')) }", url
            )

    def _note(self, url: str) -> None:
        self.asked.append(url)
        self.n_awaited += 1
        if not url.startswith((self.base, "data:", "blob:")):
            self.external.append(url)

    def _answered(self) -> None:
        self.n_awaited -= 1

    def until(self, expression: str, arg: Any = None) -> Any:
        """The value of an expression, or of a function of *arg*, once it is true.

        ``wait_for_function`` would need the policy of the page to allow eval.
        """
        check = expression if _IS_FUNCTION.match(expression) else f"() => ({expression})"
        try:
            return self.page.evaluate(_UNTIL % (check, LONGEST_WAIT_S * 1000), arg)
        except Exception as error:
            if "Execution context was destroyed" in str(error):  # the page was loaded again meanwhile
                return self.until(expression, arg)
            raise AssertionError(f"{error}: {expression}") from error

    def at_rest(self) -> None:
        """Wait until the page has everything it asked for, and shows it."""
        last_s = monotonic() + LONGEST_WAIT_S
        while not (self.page.evaluate(_AT_REST) and self.n_awaited <= 0):
            assert monotonic() < last_s, f"never at rest; {self.n_awaited} requests are not answered"

    def violations(self) -> list[str]:
        """What axe-core, which was put into the page before, says against it."""
        return [
            f"{rule['id']} ({rule['impact']}): {node['html'][:200]} {node.get('failureSummary', '')[:300]}"
            for rule in self.page.evaluate("axe.run({ resultTypes: ['violations'] })")["violations"]
            for node in rule["nodes"][:3]
        ]

    def theme(self, name: str) -> None:
        """Show the page in the theme of that name."""
        if self.page.evaluate("document.documentElement.dataset.theme") != name:
            self.page.keyboard.press("t")
        self.until(f"document.documentElement.dataset.theme === '{name}'")

    def plotted(self) -> None:
        """Until the timeline is drawn, as fine as it gets."""
        self.page.wait_for_selector(".track[data-ready]")
        self.until("window.vramscope.timeline.drawn('allocated')?.isFine")

    def drawn(self, name: str = "allocated") -> dict[str, Any]:
        """What the timeline shows of one curve: ``x`` and ``y`` in bytes, and the edges ``a`` and ``b``."""
        return self.page.evaluate("name => window.vramscope.timeline.drawn(name)", name)

    def plot(self) -> dict[str, float]:
        """Where the plot area of the timeline is on the page."""
        return self.page.evaluate(
            "() => { const figure = document.querySelector('.track'), box = figure.getBoundingClientRect();"
            " const { left, top, width, height } = window.vramscope.timeline.boxOf(figure);"
            " return { x: box.left + left, y: box.top + top, width, height } }"
        )

    def look(self, a: float, b: float) -> None:
        """Zoom to an interval of the axis, and wait until it is drawn."""
        self.page.evaluate("([a, b]) => window.vramscope.timeline.look(a, b)", [a, b])
        self.until(
            "([a, b]) => { const d = window.vramscope.timeline.drawn('allocated');"
            " return d.a === a && d.b === b && d.isFine }",
            [a, b],
        )


@pytest.fixture(scope="session")
def axe() -> str:
    kept = pytest.importorskip("axe_playwright_python.base", reason="axe-playwright-python is not installed")
    return (Path(kept.__file__).parent / "axe.min.js").read_text()


@pytest.fixture(scope="session")
def visit_class() -> type[Visit]:
    """The base of what visits a page; test folders are no packages, so not by import."""
    return Visit


@pytest.fixture
def visit(chromium: Any) -> Iterator[Callable[[str], Visit]]:
    """Opens pages; at the end none may have complained or asked anybody else."""
    visits: list[Visit] = []

    def open_(base: str, width: int = 1280) -> Visit:
        page = chromium.new_page(viewport={"width": width, "height": int(width * 0.62)})
        visits.append(Visit(page, base))
        return visits[-1]

    yield open_
    for each in visits:
        each.page.close()
        assert each.external == []
        assert each.complaints == []


@pytest.fixture(scope="session")
def staying(chromium: Any) -> Callable[[Path], AbstractContextManager[Visit]]:
    """``with staying(folder) as visitor:`` one server and one page for many tests.

    A page that comes to a server for the first time reads and compiles 6 MB of scripts, half of the CPU time
    of a short test.
    """

    @contextmanager
    def stay(folder: Path) -> Iterator[Visit]:
        with _served(folder) as base:
            page = chromium.new_page(viewport={"width": 1280, "height": 793})
            yield Visit(page, base)
            page.close()

    return stay


@pytest.fixture(scope="session")
def staying_with_run(
    runs: ModuleType, staying: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, int], AbstractContextManager[Any]]:
    """``with staying_with_run("gpt", n_steps) as visitor:`` a visitor of the only run of a folder.

    The visitor knows the ``root`` of the folder and the id of the ``run``.
    """

    @contextmanager
    def stay(name: str, n_steps: int) -> Iterator[Any]:
        from vramscope.dashboard.data import Data

        root = tmp_path_factory.mktemp(name)
        runs.recorded(root / "gpt", steps=n_steps)
        with staying(root) as visitor:
            visitor.root = root
            (visitor.run,) = Data(root).runs.paths()
            yield visitor

    return stay


@contextmanager
def _turn(visitor: Visit) -> Iterator[Visit]:
    del visitor.complaints[:], visitor.external[:]
    yield visitor
    visitor.at_rest()
    assert visitor.external == []
    assert visitor.complaints == []


@pytest.fixture(scope="session")
def turn_of() -> Callable[[Visit], AbstractContextManager[Visit]]:
    """``with turn_of(visitor):`` the part of one test in a visit; nothing of it reaches the next."""
    return _turn


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy: a summary is kept beside a recording that has none."""
    return shutil.copytree(SAMPLES, tmp_path_factory.mktemp("samples") / "traces")


@pytest.fixture(scope="module")
def guest(staying: Any, samples: Path) -> Iterator[Any]:
    """Who visits the samples, but where a file of tests has its own."""
    with staying(samples) as visitor:
        yield visitor


@pytest.fixture
def visitor(guest: Any, turn_of: Any) -> Iterator[Any]:
    with turn_of(guest):
        yield guest
