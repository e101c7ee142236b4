"""Debian's Chromium without a GPU, and dashboards over runs made on the spot."""

import importlib.util
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
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


def _runs() -> ModuleType:
    """The builders of the unit tests: test folders are no packages, so by path."""
    spec = importlib.util.spec_from_file_location("dashboard_runs", RUNS)
    assert spec
    assert spec.loader
    module = sys.modules["dashboard_runs"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def runs() -> ModuleType:
    return _runs()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not Path(CHROMIUM).exists():
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def serve_at() -> Iterator[Callable[[Path], str]]:
    """Serves a folder and gives its address; without a token, to keep addresses short."""
    from vramscope.dashboard import create_app
    from vramscope.dashboard.security import Access
    from werkzeug.serving import make_server

    servers = []

    def start(root: Path) -> str:
        app = create_app(root, Access(token=None))
        server = make_server("127.0.0.1", 0, app.server, threaded=True)
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass
class Visit:
    """A page with a memory of what it should not have done."""

    page: Any
    base: str
    complaints: list[str] = field(default_factory=list)
    external: list[str] = field(default_factory=list)

    def go(self, path: str, theme: str = "light") -> "Visit":
        self.page.add_init_script(f"localStorage.setItem('vramscope-theme', '{theme}')")
        self.page.goto(self.base + path)
        return self

    def watch(self) -> None:
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda r: self._note(r.url))

    def _note(self, url: str) -> None:
        if not url.startswith((self.base, "data:", "blob:")):
            self.external.append(url)

    def plotted(self) -> None:
        """Until the timeline is drawn."""
        self.page.wait_for_selector("#ov-graph .traceallocated .js-line", state="attached")

    def trace(self, uid: str, axis: str = "y") -> list[float]:
        """What Plotly holds of one curve."""
        return self.page.evaluate(
            "([uid, axis]) => Array.from(document.querySelector('#ov-graph .js-plotly-plot')"
            "._fullData.find(t => t.uid === uid)[axis])",
            [uid, axis],
        )

    def relayout(self, **keys: Any) -> None:
        """What dragging a box does."""
        self.page.evaluate(
            "keys => Plotly.relayout(document.querySelector('#ov-graph .js-plotly-plot'), keys)", keys
        )


@pytest.fixture
def visit(chromium: Any) -> Iterator[Callable[[str], Visit]]:
    """Opens pages; at the end none may have complained or asked anybody else."""
    visits = []

    def open_(base: str, width: int = 1280) -> Visit:
        page = chromium.new_page(viewport={"width": width, "height": int(width * 0.62)})
        page.set_default_timeout(20_000)
        made = Visit(page, base)
        made.watch()
        visits.append(made)
        return made

    yield open_
    for each in visits:
        each.page.close()
        assert each.external == []
        assert each.complaints == []
