"""Takes the pictures of the documentation from the sample recordings, in Debian's Chromium.

python scripts/pictures.py
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
CHROMIUM = "/usr/bin/chromium"
WIDTH = 1280
SETTLED_MS = 3_000
"""The list of runs asks again and again, so its network is never idle; charts are drawn within 2 s."""


class Picture(NamedTuple):
    """A picture of a page of a sample, taken in both themes."""

    page: str
    run: str
    height: int = 860
    other: str = ""


PICTURES = (
    Picture("runs", ""),
    Picture("overview", "transformer-cuda"),
    Picture("phases", "transformer-cuda", height=1240),
    Picture("allocations", "transformer-cuda"),
    Picture("peak", "transformer-cuda"),
    Picture("fragmentation", "transformer-cuda"),
    Picture("leaks", "gan-retain-graph"),
    Picture("oom", "out-of-memory"),
    Picture("fit", "transformer-cuda"),
    Picture("waterfall", "transformer-cuda"),
    Picture("compare", "transformer", other="transformer-cuda"),
    Picture("ranks", "fleet"),
)
THEMES = ("light", "dark")


@contextmanager
def serving() -> Iterator[str]:
    """Serve the samples until the end of the block."""
    command = [sys.executable, "-m", "vramscope", "serve", "sample_traces", "--no-token", "--port", "0"]
    with tempfile.TemporaryDirectory() as folder:
        # A reader may keep a summary in a run: the samples stay as they are.
        shutil.copytree(ROOT / "sample_traces", Path(folder) / "sample_traces")
        environment = os.environ | {"VRAMSCOPE_CACHE": f"{folder}/cache"}
        process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, cwd=folder, env=environment)
        try:
            assert process.stdout is not None
            yield next(found[0] for line in process.stdout if (found := re.search(r"http://[^/\s]+", line)))
        finally:
            process.terminate()
            process.wait()


def identity(page: Any, name: str) -> str:
    """Return the run that the list of runs links to under this name."""
    page.wait_for_selector(f"a[href*='run={name}-']")
    links = page.locator("a[href*='run=']").evaluate_all("links => links.map(link => link.href)")
    runs = [parse_qs(urlsplit(link).query)["run"][0] for link in links]
    return next(run for run in runs if run.rpartition("-")[0] == name)


def take(browser: Any, url: str, wanted: Picture, theme: str) -> None:
    """Save one picture as WebP."""
    page = browser.new_page(
        viewport={"width": WIDTH, "height": wanted.height}, color_scheme=theme, reduced_motion="reduce"
    )
    page.goto(url)
    names = {"run": wanted.run, "other": wanted.other}
    runs = {key: identity(page, name) for key, name in names.items() if name}
    if runs:
        page.goto(f"{url}/{wanted.page}?{urlencode(runs)}")
    page.wait_for_timeout(SETTLED_MS)
    taken = page.screenshot()
    page.close()
    file = IMAGES / theme / f"{wanted.page}.webp"
    file.parent.mkdir(exist_ok=True)
    with Image.open(BytesIO(taken)) as image:
        image.convert("RGB").save(file, quality=80, method=6)


def main() -> None:
    """Take every picture."""
    with serving() as url, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        for wanted, theme in product(PICTURES, THEMES):
            take(browser, url, wanted, theme)
        browser.close()


if __name__ == "__main__":
    main()
