"""A notebook is executed as Jupyter does, with the magic on its cells."""

import re

import pytest

pytest.importorskip("torch")
nbclient = pytest.importorskip("nbclient", reason="needs nbclient: make test-integrations")
pytest.importorskip("ipykernel", reason="needs ipykernel: make test-integrations")

import nbformat  # noqa: E402

import vramscope  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture
def executed(tmp_path, monkeypatch):
    """``executed(cell, …)``: the outputs of each cell after ``%load_ext vramscope``."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def execute(*cells):
        cells = [nbformat.v4.new_code_cell(cell) for cell in ("%load_ext vramscope", *cells)]
        notebook = nbformat.v4.new_notebook(cells=cells)
        options = {"timeout": 200, "kernel_name": "python3", "allow_errors": True}
        nbclient.NotebookClient(
            notebook, **options, resources={"metadata": {"path": str(tmp_path)}}
        ).execute()
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


def test_lines_are_those_of_the_cells_that_the_reader_sees(executed, tmp_path):
    """The cell with the magic is the first, so that with the function is the second."""
    executed(
        "import torch, vramscope\nkept = []\n\n\ndef step(n):\n    kept.append(torch.ones(n, 1024, 1024))",
        "with vramscope.record('traces/run', device='simulated', quiet=True):\n    step(3)",
    )
    (recording,) = vramscope.load(tmp_path / "traces" / "run").recordings
    (row, *_) = recording.summary().live

    assert [(frame.file, frame.line) for frame in row.frames[:2]] == [("cell [2]", 6), ("cell [3]", 2)]
