"""The programs of the how-to page run as they stand there, and record their steps."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import vramscope

pytest.importorskip("torch")

pytestmark = pytest.mark.slow
PAGE = (Path(__file__).parents[2] / "docs" / "howto.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## ([\w ]+)\n(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL))
STEPS = {"Plain PyTorch": 10, "transformers": 6, "Lightning": 8, "accelerate": 8}
"""The programs that run with what `make test` installs, and how often their optimizer steps."""
PARSED_ONLY = {"TRL", "DeepSpeed", "torchtitan", "Ray", "Slurm", "Kubernetes"}
OTHERWISE = {"Notebooks", "CI"}
QUIET = {"CUDA_VISIBLE_DEVICES": "", "VRAMSCOPE_DEVICE": "simulated", "OMP_NUM_THREADS": "1"}


def blocks(name: str) -> list[str]:
    return re.findall(r"^```\w*\n(.*?)^```$", SECTIONS[name], flags=re.MULTILINE | re.DOTALL)


def run(command: list[object], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=os.environ | QUIET,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_every_section_is_run_or_says_that_it_is_not():
    assert set(SECTIONS) == STEPS.keys() | PARSED_ONLY | OTHERWISE
    said = {
        name for name, text in SECTIONS.items() if re.search(r"parsed\s+only|no test has a cluster", text)
    }
    assert said == PARSED_ONLY


# Of these test_examples.py runs a training of the same kind.
_ALSO_EXAMPLES = ("Lightning", "accelerate", "transformers")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.exhaustive if name in _ALSO_EXAMPLES else ()) for name in STEPS],
)
def test_a_program_of_the_page_records_its_steps(name, tmp_path):
    package = {"Plain PyTorch": "torch"}.get(name, name.lower())
    if find_spec(package) is None:
        pytest.skip(f"needs {package}: make test-integrations")
    (program,) = blocks(name)
    (tmp_path / "train.py").write_text(program)
    done = run([sys.executable, "train.py"], tmp_path)

    assert done.returncode == 0, done.stderr
    (recording,) = vramscope.load(tmp_path / "traces" / "run").recordings
    assert len(recording.steps) == STEPS[name]
    assert recording.peak().allocated.n_bytes > 0


def test_the_cells_of_the_page_record_theirs(tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient: make test-integrations")
    pytest.importorskip("ipykernel", reason="needs ipykernel: make test-integrations")
    import nbformat

    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    cells = [nbformat.v4.new_code_cell(cell) for cell in blocks("Notebooks")]
    place = {"metadata": {"path": str(tmp_path)}}
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=200, kernel_name="python3", resources=place).execute()

    (recording,) = vramscope.load(tmp_path / "traces" / "run").recordings
    assert len(recording.steps) == 8


def test_the_commands_for_ci_pass_where_nothing_grows(tmp_path):
    (tmp_path / "train.py").write_text(blocks("Plain PyTorch")[0].replace("with vramscope.record", "if 1 or"))
    (commands,) = blocks("CI")
    for command in commands.splitlines():
        done = run([sys.executable, "-m", *shlex.split(command)], tmp_path)
        assert done.returncode == 0, (command, done.stdout, done.stderr)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on this machine")
def test_a_shell_reads_the_script_for_slurm(tmp_path):
    (script,) = blocks("Slurm")

    assert run(["bash", "-n", "-c", script], tmp_path).stderr == ""
