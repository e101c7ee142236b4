"""What only the samples show in a browser: the anatomy of a step in a file, and what the menu counts."""

from pathlib import Path
from typing import Any

import pytest
from vramscope.dashboard.data import Data

pytestmark = pytest.mark.browser


def named(samples: Path, name: str) -> str:
    return next(run for run, path in Data(samples).runs.paths().items() if path.name == name)


def test_the_anatomy_of_a_step_is_saved_with_its_modules_and_bytes(samples: Path, visitor: Any) -> None:
    visitor.go(f"/phases?run={named(samples, 'transformer-cuda')}").page.wait_for_selector(
        "#ph-stack[data-ready]"
    )
    visitor.page.hover("#ph-stack")
    with visitor.page.expect_download() as download:
        visitor.page.locator("#ph-stack-frame .saves button:text-is('SVG')").click()
    content = download.value.path().read_text()

    assert "Anatomy of step 1, by category and module" in content
    assert "optimizer state 5.54 MiB = 2 × parameters" in content
    assert "blocks.0.mlp +2.00 MiB" in content
    assert content.count("<g ") == content.count("</g>")


def test_the_menu_counts_the_findings_of_a_run_whatever_page_a_link_opens(
    samples: Path, visitor: Any
) -> None:
    visitor.go(f"/waterfall?run={named(samples, 'gan-retain-graph')}")

    visitor.page.wait_for_selector("#menu a:has-text('Leaks') .count")
    assert visitor.page.inner_text("#menu a:has-text('Leaks')").split() == ["Leaks", "1"]


# Where each word of a canvas was last written, and how many pixels of its row are painted beside it.
WRITTEN = """(() => {
  const write = CanvasRenderingContext2D.prototype.fillText;
  window.written = {};
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
    const { width } = this.measureText(text);
    window.written[text] = { x: this.textAlign === "right" ? x - width : x, width, y };
    return write.apply(this, arguments);
  };
})()"""
INK_BESIDE = """([word, sign]) => {
  const { x, width, y } = window.written[word], canvas = document.querySelector(".track-plot");
  const ratio = devicePixelRatio, right = Math.round(canvas.width / ratio), context = canvas.getContext("2d");
  function inked(from, to) {
    if (to <= from) return 0;
    const row = context.getImageData(from * ratio, (y - 6) * ratio, (to - from) * ratio, 12 * ratio);
    return row.data.filter((n, i) => i % 4 === 3 && n > 0).length;
  }
  return inked(72, Math.floor(x - sign)) + inked(Math.ceil(x + width + sign), right);
}"""


@pytest.mark.parametrize("width", [390, 1280])
def test_the_name_of_a_mark_has_a_row_of_its_own_in_which_no_curve_runs(
    samples: Path, guest: Any, visit: Any, width: int
) -> None:
    opened = visit(guest.base, width)
    opened.page.add_init_script(WRITTEN)
    for page in ("oom", "overview"):
        opened.go(f"/{page}?run={named(samples, 'out-of-memory')}").plotted()

        assert opened.until("window.written['out of memory']")
        assert opened.page.evaluate(INK_BESIDE, ["out of memory", 18]) == 0


OVER_ROWS = """[...document.querySelectorAll(".has-saves > .saves")].map((box) => {
  const tables = [...box.parentElement.querySelectorAll("table, .ag-root-wrapper")];
  const { top } = box.getBoundingClientRect();
  return Math.max(...tables.map((table) => table.getBoundingClientRect().bottom)) - top;
})"""


@pytest.mark.parametrize("page", ["oom", "fit"])
def test_what_saves_a_table_lies_below_its_last_row(samples: Path, visitor: Any, page: str) -> None:
    visitor.go(f"/{page}?run={named(samples, 'out-of-memory')}")
    visitor.page.wait_for_selector(".has-saves > .saves")
    visitor.at_rest()
    over = visitor.page.evaluate(OVER_ROWS)

    assert over
    assert max(over) <= 0.5


def test_a_file_has_what_a_table_folds(samples: Path, visitor: Any) -> None:
    visitor.go(f"/fit?run={named(samples, 'out-of-memory')}").page.wait_for_selector("table.fit-savings")
    visitor.at_rest()
    with visitor.page.expect_download() as download:
        visitor.page.locator("#fi-savings .saves button:text-is('CSV')").click()
    content = download.value.path().read_text()

    assert visitor.page.inner_text("table.fit-savings").count("torch.nn make a row") == 0
    assert "estimate: " in content
    assert not visitor.page.locator("table.fit-savings details[open]").count()
