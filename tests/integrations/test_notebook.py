"""A notebook is executed as Jupyter does, with the magic on its cells."""

import json
import re
import time
from itertools import pairwise
from statistics import median

import pytest

pytest.importorskip("torch")
nbclient = pytest.importorskip("nbclient", reason="needs nbclient: make test-integrations")
pytest.importorskip("ipykernel", reason="needs ipykernel: make test-integrations")

import nbformat  # noqa: E402

import vramscope  # noqa: E402

pytestmark = pytest.mark.slow


class Client(nbclient.NotebookClient):
    """Executes a notebook; keeps what the widgets in it show, when, and what the cell had printed by then."""

    def process_message(self, message, cell, cell_index):
        state = message["content"].get("data", {}).get("state", {}) if "comm" in message["msg_type"] else {}
        if "shown" in state and state["shown"]["columns"]:
            printed = [out["text"] for out in cell.outputs if out["output_type"] == "stream"]
            self.shown.append((state["shown"], "".join(printed), time.time_ns()))
        return super().process_message(message, cell, cell_index)


@pytest.fixture
def executed(tmp_path, monkeypatch):
    """``executed(cell, …)``: the outputs of each cell after ``%load_ext vramscope``."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def execute(*cells, shown=None):
        cells = [nbformat.v4.new_code_cell(cell) for cell in ("%load_ext vramscope", *cells)]
        notebook = nbformat.v4.new_notebook(cells=cells)
        options = {"timeout": 200, "kernel_name": "python3", "allow_errors": True}
        client = Client(notebook, **options, resources={"metadata": {"path": str(tmp_path)}})
        client.shown = [] if shown is None else shown
        client.execute()
        return [cell.outputs for cell in notebook.cells[1:]]

    return execute


def html_of(outputs) -> str:
    return "".join(out["data"]["text/html"] for out in outputs if "text/html" in out.get("data", {}))


def test_a_cell_is_recorded_and_its_figure_table_and_place_are_shown(executed, tmp_path):
    (first, second) = executed(
        "%%vramscope traces/first\nimport torch\nkept = torch.ones(3, 1024, 1024)\nprint('the cell ran')",
        "print(kept.sum().item())",
    )
    (recording,) = vramscope.load(tmp_path / "traces" / "first").recordings
    page = html_of(first)

    assert "the cell ran" in first[0]["text"]
    assert "3145728.0" in second[0]["text"], "what the cell defined is there in the next one"
    assert recording.peak().allocated.n_bytes >= 12 << 20
    assert "12.0 MiB" in page
    assert "<svg" in page
    assert "vramscope serve" in page
    assert "<script" not in page


def test_an_error_of_a_cell_is_shown_once_and_recorded(executed, tmp_path):
    (outputs,) = executed("%%vramscope traces/wrong\nimport torch\ntorch.ones(4)\nraise ValueError('bad')")
    run = vramscope.load(tmp_path / "traces" / "wrong")
    errors = [out for out in outputs if out["output_type"] == "error"]

    assert [out["ename"] for out in errors] == ["ValueError"]
    assert (run.outcome.value, run.error) == ("failed", "ValueError: bad")
    assert html_of(outputs)


def test_each_cell_without_a_directory_has_one_of_its_own(executed, tmp_path):
    executed("%%vramscope\nimport torch\na = torch.ones(4)", "%%vramscope\nb = torch.ones(4)")
    names = sorted(path.name for path in (tmp_path / "traces").iterdir())

    assert len(names) == 2
    assert all(re.fullmatch(r"cell-\d{8}-\d{6}-\d{6}", name) for name in names)


GROWING = """%%vramscope --live traces/grown
import json, time, torch
kept, allocated_ns = [], []
net = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(net.parameters())
for _ in range(20):
    net(torch.ones(8, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    kept.append(torch.ones(1 << 20))
    allocated_ns.append(time.time_ns())
    time.sleep(0.2)
print(json.dumps(allocated_ns))
"""
MOST_LATE_S = 3.0
"""For the median: 1.4 s on two cores that had four times as much to do as they can."""


def test_a_widget_follows_a_training_cell_while_it_runs_and_the_result_takes_its_place(executed):
    pytest.importorskip("anywidget", reason="needs anywidget: make test-integrations")
    shown = []
    (outputs,) = executed(GROWING, shown=shown)
    allocated_ns = json.loads(next(out["text"] for out in outputs if out["output_type"] == "stream"))
    seen = [(state["columns"][-1][1] // (4 << 20), at_ns) for state, printed, at_ns in shown if not printed]
    late_s = [
        (at_ns - allocated_ns[n_kept - 1]) / 1e9
        for (before, _), (after, at_ns) in pairwise([(0, 0), *seen])
        for n_kept in range(before + 1, after + 1)
    ]
    print(f"late by {median(late_s):.2f} s in the median, {max(late_s):.2f} s at most: {len(late_s)} shown")

    assert len({n_kept for n_kept, _ in seen}) > 2
    assert [n_kept for n_kept, _ in seen] == sorted(n_kept for n_kept, _ in seen)
    assert min(late_s) > 0, "the widget shows only what is allocated already"
    assert median(late_s) < MOST_LATE_S
    assert "vramscope serve" in html_of(outputs)
    assert not any("widget-view" in kind for out in outputs for kind in out.get("data", {}))
