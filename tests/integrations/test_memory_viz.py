"""MemoryViz, the viewer behind pytorch.org/memory_viz, opens our export in chromium and shows our totals.

torch's packages leave its script out, so this test runs where the environment variable
``VRAMSCOPE_MEMORY_VIZ`` names a file ``torch/utils/viz/MemoryViz.js``, as PyTorch has it since 2026.
"""

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from captures import genuine_file

import vramscope
from vramscope.export.memory_viz import EXPORT
from vramscope.model.trace import Action

pytestmark = [pytest.mark.slow, pytest.mark.browser]
ROOT = Path(__file__).parents[2]
D3 = ROOT / ".cache" / "d3" / "package" / "dist" / "d3.min.js"
SCRIPT = os.environ.get("VRAMSCOPE_MEMORY_VIZ", "")
# The total after an allocation is named while the mouse is over its polygon.
TOTALS = r"""() => [...document.querySelectorAll("polygon")].map(polygon => {
    polygon.dispatchEvent(new MouseEvent("mouseover", {bubbles: true}));
    const text = [...document.querySelectorAll("pre")].at(-1).textContent;
    return Number(text.match(/after allocation: .*?\((\d+) bytes\)/)?.[1]);
}).filter(Number.isFinite)"""
# The state after an event is named once its row is clicked.
STATE = r"""row => {
    const [text, ...rows] = [...document.querySelectorAll("pre")].filter(each => each.checkVisibility());
    rows[row].dispatchEvent(new MouseEvent("mousedown", {bubbles: true}));
    const [, allocated, reserved] = text.textContent.match(
        /\((\d+) bytes\) allocated \/ .*?\((\d+) bytes\) reserved/);
    return [rows.length, Number(allocated), Number(reserved)];
}"""


@pytest.fixture
def viewer():
    """A page of chromium with the viewer; what the viewer takes from a CDN comes from d3's npm package."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not SCRIPT:
        pytest.skip("needs VRAMSCOPE_MEMORY_VIZ=…/torch/utils/viz/MemoryViz.js, of PyTorch's sources")
    if not D3.exists():
        pytest.skip("needs d3: make d3")
    if shutil.which("chromium") is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_context(offline=True).new_page()
        page.add_script_tag(content=D3.read_text())
        names = ",".join(page.evaluate("Object.keys(d3)"))
        module = f"export const {{{names}}} = globalThis.d3"
        page.route(
            re.compile("^https://.*d3"),
            lambda route: route.fulfill(
                body=module,
                content_type="text/javascript",
                headers={"access-control-allow-origin": "*"},
            ),
        )
        page.add_script_tag(content=Path(SCRIPT).read_text(), type="module")
        yield page
        browser.close()


def rows_of(trace):
    """The row of each event in the viewer's list, where two events that free a block at once are one."""
    is_second = np.zeros(len(trace), bool)
    is_second[1:] = (
        (trace.action[1:] == Action.FREE_COMPLETED)
        & (trace.action[:-1] == Action.FREE_REQUESTED)
        & (trace.address[1:] == trace.address[:-1])
    )
    return np.arange(len(trace)) - np.cumsum(is_second)


@pytest.mark.parametrize("name", ["transformer-cuda", "late"])
def test_memory_viz_shows_the_totals_of_the_recording(viewer, tmp_path, name):
    source = genuine_file(name) if name == "late" else ROOT / "sample_traces" / name
    run = vramscope.load(source)
    (recording,) = run.recordings
    totals, rows = recording.timeline(), rows_of(recording.trace)
    (file,) = EXPORT.write(run, tmp_path / "out.pickle")
    viewer.locator("input[type=file]").set_input_files(file)
    viewer.locator("polygon").first.wait_for(state="attached")
    allocated = viewer.evaluate(TOTALS)
    viewer.locator("select", has_text="Allocator State History").select_option("Allocator State History")
    viewer.get_by_text("reserved)").wait_for()
    peak = int(totals.requested_bytes.argmax())
    for event in {0, len(rows) // 3, peak - 1, len(rows) - 1}:
        shown = viewer.evaluate(STATE, int(rows[event]))

        assert shown == [rows[-1] + 1, totals.requested_bytes[event + 1], totals.reserved_bytes[event + 1]]
    assert max(allocated) == totals.requested_bytes.max()
