"""Takes every page at five widths, at 200 % and in simulated colour deficiencies, and lays them on one sheet.

A sheet is looked at, not compared: ``benchmarks/looks/PAGE.webp`` has both themes below one another, and the
deficiencies in a third row. The single pictures stay where ``--keep`` says.

python scripts/looks.py [--keep FOLDER] [PAGE ...]
"""

import argparse
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from pictures import CHROMIUM, PICTURES, ROOT, THEMES, Picture, identity, serving
from PIL import Image
from playwright.sync_api import sync_playwright

SHEETS = ROOT / "benchmarks" / "looks"
WIDTHS = {390: 844, 768: 1024, 1280: 860, 1440: 900, 2560: 1440}
DEFICIENCIES = ("deuteranopia", "protanopia", "tritanopia", "achromatopsia")
SETTLED_MS = 1_500
SCALE, GAP, GROUND = 0.3, 8, (128, 128, 128)
"""Pixels of a sheet for one of the page: its layout is seen at 0.3, its words in the single pictures."""


class Look(NamedTuple):
    """One view of a page: how wide and high its window is in CSS pixels, and how it is shown."""

    width: int
    height: int
    theme: str
    deficiency: str = "none"
    pixels: int = 1

    @property
    def name(self) -> str:
        """Return the part of a file's name that tells this view from the others."""
        seen = "" if self.deficiency == "none" else f"-{self.deficiency}"
        return f"{self.width}{'-200-percent' if self.pixels > 1 else ''}-{self.theme}{seen}"


ROWS = [
    *(
        [*(Look(*size, theme) for size in WIDTHS.items()), Look(640, 430, theme, pixels=2)]
        for theme in THEMES
    ),
    [Look(1280, 860, "light", each) for each in DEFICIENCIES],
]


def looks(browser: Any, url: str, wanted: Picture) -> list[list[Image.Image]]:
    """Return the rows of a sheet; a page that is wider than its window is reported."""
    return [[_look(browser, url, wanted, look) for look in row] for row in ROWS]


def _look(browser: Any, url: str, wanted: Picture, look: Look) -> Image.Image:
    page = browser.new_page(
        viewport={"width": look.width, "height": look.height}, device_scale_factor=look.pixels,
        color_scheme=look.theme, reduced_motion="reduce",
    )  # fmt: skip
    page.goto(f"{url}/{wanted.page if wanted.run else ''}?{_query(wanted)}")
    page.wait_for_selector("main .claim, main .state, main .ag-row, main .runs tbody tr, main .others")
    page.wait_for_timeout(SETTLED_MS)
    if look.deficiency != "none":
        session = page.context.new_cdp_session(page)
        session.send("Emulation.setEmulatedVisionDeficiency", {"type": look.deficiency})
    too_wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    if too_wide > 0:
        print(f"{wanted.page} at {look.name}: {too_wide} pixels wider than the window")
    taken = Image.open(BytesIO(page.screenshot(full_page=True))).convert("RGB")
    page.close()
    return taken


_IDENTITIES: dict[str, str] = {}


def _query(wanted: Picture) -> str:
    runs = {"run": wanted.run, "other": wanted.other}
    return urlencode({key: _IDENTITIES[name] for key, name in runs.items() if name})


def sheet(rows: list[list[Image.Image]]) -> Image.Image:
    """Return all pictures on one, each at the same scale of CSS pixels."""
    small = [
        [
            one.resize([int(side * SCALE / look.pixels) for side in one.size])
            for one, look in zip(*row, strict=True)
        ]
        for row in zip(rows, ROWS, strict=True)
    ]
    heights = [max(one.height for one in row) + GAP for row in small]
    width = max(sum(one.width + GAP for one in row) for row in small) + GAP
    made = Image.new("RGB", (width, sum(heights) + GAP), GROUND)
    top = GAP
    for row, height in zip(small, heights, strict=True):
        left = GAP
        for one in row:
            made.paste(one, (left, top))
            left += one.width + GAP
        top += height
    return made


def main() -> None:
    """Take the sheet of every page, or of those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*")
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    for folder in (SHEETS, args.keep):
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
    with serving() as url, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        listed = browser.new_page()
        listed.goto(url)
        for name in {each for one in PICTURES for each in (one.run, one.other) if each}:
            _IDENTITIES[name] = identity(listed, name)
        for wanted in PICTURES:
            if args.pages and wanted.page not in args.pages:
                continue
            rows = looks(browser, url, wanted)
            sheet(rows).save(SHEETS / f"{wanted.page}.webp", quality=70, method=6)
            for look, one in zip(chain(*ROWS), chain(*rows), strict=True):
                if args.keep:
                    one.save(args.keep / f"{wanted.page}-{look.name}.png")
        browser.close()


if __name__ == "__main__":
    main()
