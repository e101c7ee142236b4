"""A program under ``vramscope run`` is what it is under python; only that it is recorded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vramscope.loading import load
from vramscope.model.recording import Outcome
from vramscope.store.write.launcher_frames import LaunchFrames

ROOT = Path(__file__).parents[3]

TELLS = """
import json, os, sys
import beside
main = sys.modules["__main__"]
names = ("__name__", "__file__", "__package__", "__cached__")
print(json.dumps({name: globals()[name] for name in names}))
print(sys.argv, sys.path[0], main.__dict__ is globals(), __spec__ and (__spec__.name, __spec__.origin))
print(__loader__.__class__, sorted(globals()))
class Here:
    pass
import pickle
assert pickle.loads(pickle.dumps(Here)) is Here
def fail():
    try:
        1 / 0
    except ZeroDivisionError as error:
        raise ValueError("mine") from error
ends = {"--exit": lambda: sys.exit(7), "--say": lambda: sys.exit("a word"), "--fail": fail}
for word in sys.argv[1:]:
    ends.get(word, lambda: None)()
"""

TRAINS = """
import os
os.environ["TOLD_BEFORE"] = "1"
import torch
model = torch.nn.Linear(100, 100)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.randn(5, 100)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
raise RuntimeError("after three steps")
"""


@pytest.fixture
def program(tmp_path):
    """``program(arguments…, by=())`` runs python with them, or vramscope run where *by* says so."""
    for home in (tmp_path, tmp_path / "package"):
        home.mkdir(exist_ok=True)
        (home / "tells.py").write_text(TELLS)
        (home / "beside.py").write_text("")
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "__main__.py").write_text(TELLS)
    (tmp_path / "trains.py").write_text(TRAINS)

    def run(*arguments, by=()):
        return subprocess.run(
            [sys.executable, *by, *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


WITH_US = ("-m", "vramscope", "run", "--quiet")


@pytest.mark.parametrize(
    "arguments",
    [
        ("tells.py", "--lr", "3", "-m", "--debug"),
        ("package/tells.py",),
        ("-m", "tells", "x"),
        ("-m", "package", "--device", "mine"),
        ("tells.py", "--exit"),
        ("tells.py", "--say"),
        ("tells.py", "--fail"),
    ],
)
def test_it_sees_writes_and_ends_as_under_python(program, arguments):
    theirs, ours = program(*arguments), program(*arguments, by=WITH_US)
    said = [line for line in ours.stderr.splitlines() if not line.startswith("vramscope: ")]

    assert ours.stdout == theirs.stdout
    assert ours.returncode == theirs.returncode
    assert said == theirs.stderr.splitlines()


def test_a_training_is_recorded_from_its_own_lines_and_its_end_printed(program, tmp_path):
    pytest.importorskip("torch")
    done = program("trains.py", by=(*WITH_US, "--output", "run", "--device", "simulated"))
    run = load(tmp_path / "run")
    (recording,) = run.recordings
    stacks = recording.stacks
    roots = set()
    for allocated in set(recording.trace.stack_id.tolist()) - {0}:
        outermost = allocated
        while stacks.parent[outermost]:
            outermost = int(stacks.parent[outermost])
        roots.add((stacks.frame(outermost).file, stacks.frame(outermost).function))

    assert done.returncode == 1
    assert run.outcome is Outcome.FAILED
    assert run.error == "RuntimeError: after three steps"
    assert len(recording.steps) == 3
    assert roots == {(str(tmp_path / "trains.py"), "<module>")}


def test_what_cannot_be_recorded_is_one_line_and_no_fault_of_the_program(program, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = program("trains.py", by=(*WITH_US, "--device", "cuda"))

    assert done.returncode == 1
    assert done.stderr == "vramscope: no CUDA device here; record(device='simulated') needs none\n"


def test_a_program_without_torch_runs_and_a_line_says_that_nothing_was_recorded(program, tmp_path):
    done = program("tells.py", by=WITH_US)

    assert done.returncode == 0
    assert "did not import torch; nothing was recorded" in done.stderr
    assert not (tmp_path / "traces").exists()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [((), "which program?"), (("none.py",), "script does not exist"), (("-m", "none"), "no module 'none'")],
)
def test_what_cannot_be_run_is_one_line_and_asked_wrongly(program, arguments, word):
    done = program(*arguments, by=WITH_US)

    assert done.returncode == 2
    assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_stacks_begin_where_the_program_does_and_keep_their_numbers():
    import vramscope.commands.run as launcher

    frames = LaunchFrames()
    first = [
        (0, "<module>", "/usr/bin/vramscope", 8),
        (1, "run", launcher.__file__, 40),
        (2, "<module>", "/home/me/train.py", 3),
    ]
    second = [(3, "step", "/home/me/train.py", 9), (0, "run", "/home/me/vramscope.py", 1)]

    assert [parent for parent, *_ in frames.without(first)] == [0, 1, 0]
    assert list(frames.without(second)) == second
