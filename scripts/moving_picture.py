"""Takes the moving picture of README: the demo trains, its page fills, and two clicks say what made the peak.

python scripts/moving_picture.py
"""

import os
import re
import subprocess
import sys
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "live-light.webp"
CHROMIUM = "/usr/bin/chromium"
WIDTH, HEIGHT, SHOWN_WIDTH = 1280, 760, 960
FRAMES, APART_MS, STEPS = 22, 900, 12


def frames(page: Any) -> list[tuple[Image.Image, int]]:
    """Each picture, and how long it stands: the page fills, then the line of the peak, then all blocks."""
    taken: list[tuple[Image.Image, int]] = []

    def take(stands_ms: int) -> None:
        with Image.open(BytesIO(page.screenshot())) as image:
            size = SHOWN_WIDTH, HEIGHT * SHOWN_WIDTH // WIDTH
            taken.append((image.convert("RGB").resize(size, Image.Resampling.LANCZOS), stands_ms))

    for _ in range(FRAMES):
        take(350)
        page.wait_for_timeout(APART_MS)
    page.get_by_text("Show the line").first.click()
    page.wait_for_timeout(2500)
    take(3000)
    page.get_by_role("link", name="Allocations").first.click()
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(2500)
    take(3500)
    return taken


def main() -> None:
    """Train the demo, and save the picture."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-u", "-m", "vramscope", "demo", "--output", "traces/gpt"]
        command += ["--steps", str(STEPS), "--port", "0"]
        demo = subprocess.Popen(command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE)
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            assert demo.stdout is not None
            url = next(found[0] for line in demo.stdout if (found := re.search(r"http://\S+", line)))
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
            page.goto(url)
            page.wait_for_timeout(2000)
            taken = frames(page)
        finally:
            browser.close()
            demo.terminate()
            demo.wait()
    (first, _), *others = taken
    stands = [ms for _, ms in taken]
    rest = [image for image, _ in others]
    first.save(PICTURE, save_all=True, append_images=rest, duration=stands, loop=0, quality=60, method=6)


if __name__ == "__main__":
    main()
