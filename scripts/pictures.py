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
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
CHROMIUM = "/usr/bin/chromium"
WIDTH = 1280


class Picture(NamedTuple):
    """A picture of a page of a sample."""

    name: str
    theme: str
    run: str
    page: str
    height: int


PICTURES = (
    Picture("allocations-light", "light", "transformer-cuda", "allocations", 800),
    Picture("fragmentation-light", "light", "transformer-cuda", "fragmentation", 860),
    Picture("leaks-dark", "dark", "gan-retain-graph", "leaks", 840),
)


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


def take(browser: Any, url: str, wanted: Picture) -> None:
    """Save one picture, with 256 colors: a third of the bytes, and no difference to the eye."""
    page = browser.new_page(
        viewport={"width": WIDTH, "height": wanted.height}, color_scheme=wanted.theme, reduced_motion="reduce"
    )
    page.goto(url)
    link = page.locator(f"a[href*='run={wanted.run}-']").first
    run = re.search(r"run=([^&]+)", link.get_attribute("href"))[1]
    page.goto(f"{url}/{wanted.page}?run={run}")
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(1500)
    file = IMAGES / f"{wanted.name}.png"
    page.screenshot(path=file)
    page.close()
    with Image.open(file) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)


def main() -> None:
    """Take every picture."""
    with serving() as url, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        for wanted in PICTURES:
            take(browser, url, wanted)
        browser.close()


if __name__ == "__main__":
    main()
