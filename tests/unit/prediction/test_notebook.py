"""A notebook runs by its code cells, without Jupyter."""

import json

import pytest

from vramscope.errors import UsageError
from vramscope.prediction.script import execute, script


def notebook(path, *sources):
    cells = [
        {"cell_type": "code", "source": each, "outputs": [], "execution_count": None} for each in sources
    ]
    cells.insert(1, {"cell_type": "markdown", "source": ["# no code: [\n"]})
    path.write_text(json.dumps({"cells": cells, "nbformat": 4, "metadata": {}}))
    return str(path)


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    import sys

    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


def test_cells_share_their_names_and_lines_for_jupyter_are_left_out(tmp_path):
    path = notebook(
        tmp_path / "train.ipynb",
        ["%matplotlib inline\n", "import sys\n", "total = 1"],
        "%%bash\nexit 1",
        "for n in range(3):\n    !nvidia-smi\n    total += n\ntotal?",
        ["result = (total, sys.argv[1], len)"],
    )
    target = script(path)

    execute(target, ["argument"])

    assert target.main.result == (4, "argument", len)


def test_a_frame_names_its_cell(tmp_path):
    path = notebook(tmp_path / "train.ipynb", "def fail():\n    return 1 / 0", "", "fail()")
    target = script(path)

    with pytest.raises(ZeroDivisionError) as raised:
        execute(target, [])

    places = [(entry.path.name if hasattr(entry.path, "name") else str(entry.path).rpartition("/")[2],
               entry.lineno + 1) for entry in raised.traceback[-2:]]  # fmt: skip
    assert places == [("train.ipynb, cell 3", 1), ("train.ipynb, cell 1", 2)]


@pytest.mark.parametrize(
    "text", ["not json", "[1]", '{"cells": 5}', "[" * 100_000], ids=["text", "list", "number", "brackets"]
)
def test_what_is_no_notebook_is_refused_in_one_sentence(tmp_path, text):
    path = tmp_path / "train.ipynb"
    path.write_text(text)

    with pytest.raises(UsageError, match=r"train\.ipynb: this is not Python"):
        script(str(path))


def test_a_cell_that_is_no_python_is_refused_with_its_name(tmp_path):
    with pytest.raises(UsageError, match=r"cell 2"):
        script(notebook(tmp_path / "train.ipynb", "a = 1", "a = = 1"))
