"""What the pages draw of steps without events is what torch says of them."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from standin_fixtures import AFTER, BEFORE

pytest.importorskip("dash")
from vramscope.dashboard.address import Address
from vramscope.dashboard.components.graph import DRAWN
from vramscope.dashboard.data import Data
from vramscope.dashboard.figures.drawing.theme import unpack
from vramscope.dashboard.pages import Context, pages
from vramscope.dashboard.report.chapters import chapters
from vramscope.dashboard.server.app import build_app
from vramscope.dashboard.server.security import Access

from vramscope.steps.unrecorded import unrecorded
from vramscope.units import format_bytes

pytestmark = pytest.mark.standin

PROGRAM = """
import sys
import vramscope
from torch import nn
model = nn.Linear(256, 256).cuda()
optimizer = torch.optim.AdamW(model.parameters())
kept, answer = [], []
options = {"counters": {"mode": "counters"}, "auto": {"every": "auto"}}[sys.argv[2]]
with vramscope.record(sys.argv[1], quiet=True, **options) as recorder:
    for number in range(40):
        torch.cuda.reset_peak_memory_stats()
        model(torch.randn(64, 256, device="cuda")).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(torch.zeros(194 * 256, device="cuda"))
        answer.append([torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()])
        recorder.step()
"""


@pytest.fixture(scope="module")
def runs(python, tmp_path_factory):
    """The dashboard over a run of each way to record, and torch's level and peak of every step."""
    folder, truth = tmp_path_factory.mktemp("levels"), {}
    for mode in ("counters", "auto"):
        (folder / "script.py").write_text(BEFORE + PROGRAM + AFTER.format(path=str(folder / "answer.json")))
        done = python(folder / "script.py", folder / "runs" / mode, mode, cwd=folder)
        assert done.returncode == 0, done.stderr
        truth[mode] = json.loads((folder / "answer.json").read_text())
    data = Data(folder / "runs")
    return data, {Path(path).name: run for run, path in data.runs.paths().items()}, truth


def _parts(part):
    yield part
    inside = getattr(part, "children", None) if not isinstance(part, list) else part
    for each in inside if isinstance(inside, (list, tuple)) else [inside]:
        if each is not None and not isinstance(each, str):
            yield from _parts(each)


def _columns(answer):
    answer = gzip.decompress(answer)
    size = int.from_bytes(answer[:4], "little")
    found, at = json.loads(answer[4 : 4 + size]), 4 + size
    for name, n, kind, unit, divisor, sums in found["columns"]:
        numbers = np.frombuffer(answer, f"<{kind}", n, at)
        found[name] = (np.cumsum(numbers.astype("f8")) if sums else numbers) * float(unit) / divisor
        at += numbers.nbytes
    return found


def _page(name, runs, mode):
    data, ids, _ = runs
    page = next(page for page in pages() if page.name == name)
    return {
        str(getattr(part, "id", "")): part
        for part in _parts(page.layout(Context(data, Address(page.path, run=ids[mode]))))
    }


@pytest.mark.parametrize("name", ["overview", "leaks"])
def test_a_run_of_counters_alone_shows_the_peak_and_the_level_of_every_step(runs, name):
    drawn = json.loads(getattr(_page(name, runs, "counters")["counted"], DRAWN))["data"]

    assert [unpack(each["x"]).tolist() for each in drawn] == [list(range(40))] * 2
    level, peak = zip(*runs[2]["counters"], strict=True)
    assert [unpack(each["y"]).tolist() for each in drawn] == [[*peak], [*level]]
    assert [each["mode"] for each in drawn] == ["markers"] * 2  # nothing is known between two


def test_the_timeline_of_some_steps_follows_the_level_and_the_peak_of_the_others(runs):
    data, ids, truth = runs
    run = ids["auto"]
    client, url = build_app(data, Access(token=None)).server.test_client(), f"/api/timeline?run={run}&w=900"
    drawn = _columns(client.get(url, base_url="http://127.0.0.1").get_data())
    view = data.view(Address(run=run))
    steps, bare = view.recording.steps, unrecorded(view.recording)
    left_out = steps.index[bare.overlap(steps.start_ns, steps.end_ns)].tolist()

    assert len(left_out) > 20
    assert drawn["counted.level"].tolist() == [truth["auto"][number][0] for number in left_out]
    assert drawn["counted.y"].tolist() == [truth["auto"][number][1] for number in left_out]
    # The browser draws no line through a step that is left out as a whole.
    starts, ends = steps.start_ns[left_out], steps.end_ns[left_out]
    whole = ((bare.start_ns <= starts[:, None]) & (ends[:, None] <= bare.end_ns)).any(axis=1)
    middle = (drawn["counted.x"] + drawn["counted.end"])[whole] / 2
    row = np.searchsorted(drawn["bare.from"], middle, "right") - 1
    assert whole.sum() > 10
    assert (row >= 0).all()
    assert (middle < drawn["bare.to"][row]).all()
    assert drawn["top"]["allocated"] >= max(peak for _, peak in truth["auto"])


def test_the_growth_of_a_leak_is_drawn_by_the_levels_of_all_steps(runs):
    lines, levels = _page("leaks", runs, "auto")["lk-graph"].figure["data"]
    number, n_bytes = unpack(levels["x"]), unpack(levels["y"])
    level = np.array([level for level, _ in runs[2]["auto"]])
    assert number.tolist() == list(range(40))
    assert n_bytes * (1 << 20) == pytest.approx(level - level[0], abs=1)
    assert levels["mode"] == "markers"
    assert lines["mode"] == "lines+markers"


def test_peak_says_that_a_step_without_events_was_higher(runs):
    peaks = [peak for _, peak in runs[2]["auto"]]
    top = max(peaks)
    said = str(_page("peak", runs, "auto")["pk-opening"])

    assert f"The peak, {format_bytes(top)} in step {peaks.index(top)}, has no events." in said
    assert "Highest with events: " in said


def test_a_saved_report_draws_the_steps_without_events_and_no_level_through_them(runs):
    data, ids, truth = runs
    address = Address(run=ids["auto"])
    view = data.view(address)
    drawn = next(
        part for part in _parts(chapters(data, view, address)) if getattr(part, "id", "") == "rp-time"
    )
    traces = {each["uid"]: each for each in drawn.figure["data"]}
    peak, level = (unpack(traces[uid]["y"]) * (1 << 20) for uid in ("counted", "counted-level"))
    steps, bare = view.recording.steps, unrecorded(view.recording)
    left_out = steps.index[bare.overlap(steps.start_ns, steps.end_ns)].tolist()

    assert level[1::3] == pytest.approx([truth["auto"][number][0] for number in left_out], abs=1)
    assert peak[::3] == pytest.approx([truth["auto"][number][1] for number in left_out], abs=1)
    x, y = (unpack(traces["allocated"][each]) for each in "xy")
    middle = unpack(traces["counted"]["x"]).reshape(-1, 3)[:, :2].mean(axis=1)
    before = y[np.searchsorted(x, middle, "right") - 1]
    assert np.isnan(before).sum() > 10
    assert before[np.isnan(before)].size + 3 > len(middle)  # a stretch may begin within a step
