"""speedscope itself, its npm package in chromium, opens our export and shows all bytes of the peak."""

import base64
import re
import shutil
from pathlib import Path

import pytest

import vramscope
from vramscope.export.speedscope import EXPORT

pytestmark = [pytest.mark.slow, pytest.mark.browser]
ROOT = Path(__file__).parents[2]
VIEWER = ROOT / ".cache" / "speedscope" / "package" / "dist" / "release" / "index.html"
# The flame graph is drawn by WebGL, which chromium has in software too.
FLAGS = ("--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader")
UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}


@pytest.fixture
def viewer():
    """A page of chromium, without network."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not VIEWER.exists():
        pytest.skip("needs speedscope: make speedscope")
    if shutil.which("chromium") is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=list(FLAGS))
        yield browser.new_context(offline=True).new_page()
        browser.close()


def test_the_table_of_speedscope_sums_up_to_the_peak(viewer, tmp_path):
    run = vramscope.load(ROOT / "sample_traces" / "transformer-cuda")
    (file,) = EXPORT.write(run, tmp_path / "peak.speedscope.json")
    # What the command speedscope does with a file: a script beside the page hands it over.
    content = base64.b64encode(file.read_bytes()).decode()
    script = tmp_path / "peak.js"
    script.write_text(f"speedscope.loadFileFromBase64('peak', '{content}')")
    viewer.goto(f"{VIEWER.as_uri()}#localProfilePath={script}")
    viewer.get_by_text("rank 0, device 0: allocated at the peak").first.wait_for()
    viewer.get_by_text("Sandwich").click()
    # The rows come after the head of the table.
    viewer.get_by_text("%)").first.wait_for()
    shown = re.findall(r"^\t([\d.]+) (B|KB|MB|GB) \(", viewer.inner_text("body"), re.MULTILINE)
    n_bytes = sum(float(size) * UNITS[unit] for size, unit in shown)

    # Each row of "self" is rounded to a hundredth of its unit.
    assert n_bytes == pytest.approx(
        run.recordings[0].peak().allocated.n_bytes, abs=len(shown) * 0.01 * (1 << 20)
    )
    assert len(shown) > 20
