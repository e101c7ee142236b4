"""``vramscope run COMMAND`` records every Python process below it that imports torch, and changes none."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from vramscope.loading import load
from vramscope.model.marks import Phase
from vramscope.model.recording import Outcome
from vramscope.model.trace import Action
from vramscope.recorder.from_outside.below_a_command import is_no_training
from vramscope.steps.innermost import phases_of

ROOT = Path(__file__).parents[3]
PROGRAMS = ROOT / "tests" / "unit" / "capture" / "programs"
sys.path.append(str(PROGRAMS))

from two_trainings import ELEMENTS, N_STEPS, PHASES, THREADS  # noqa: E402

LOADS_AND_SPAWNS = """
import multiprocessing
import torch
from two_trainings import N_STEPS, Thread

def train(name):
    thread = Thread(name, lambda: None)
    for _ in range(N_STEPS):
        thread.step()

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=train, args=("second",))
    child.start()
    train("first")
    loaders = (
        torch.utils.data.DataLoader(range(8), num_workers=2, multiprocessing_context=how)
        for how in ("spawn", "fork")
    )
    print(sum(int(batch) for loader in loaders for batch in loader))
    child.join()
"""

TRAIN = """
import os, sys
import torch
if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(100, int(sys.argv[1]))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    loss = model(torch.randn(5, 100)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("loss", sys.argv[1], loss.item())
if "--fail" in sys.argv:
    raise RuntimeError("after three steps")
"""


@pytest.fixture
def started(tmp_path):
    """``started(words…, recorded=True)`` runs a command in a folder with ``train.py``."""
    (tmp_path / "train.py").write_text(TRAIN)

    def run(*command, recorded=(), **more):
        before = [sys.executable, "-m", "vramscope", "run", *recorded] if recorded else []
        environment = {name: value for name, value in os.environ.items() if not name.startswith("VRAMSCOPE_")}
        return subprocess.run(
            [*before, *command],
            cwd=tmp_path,
            env=environment | {"PYTHONPATH": str(ROOT)} | more,
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )

    return run


def script(folder, text):
    path = folder / "start.sh"
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return str(path)


def phases_by_label(recording):
    """The phase of each allocation whose size says in which phase the program made it."""
    births = np.flatnonzero(recording.trace.action == Action.ALLOC)
    phase = np.append(recording.phases.phase, Phase.OTHER)[phases_of(recording.phases, len(recording.trace))]
    found = {}
    for label, elements in ELEMENTS.items():
        mine = births[recording.trace.size[births] == 4 * elements]
        if len(mine):
            found[label] = [Phase(value).name.lower() for value in phase[mine].tolist()]
    return found


def weight_bytes(recording):
    """The largest parameter, from its size alone."""
    trace = recording.trace
    return int(trace.size[trace.action == Action.ALLOC].max())


@pytest.mark.exhaustive
def test_two_trainings_of_a_shell_script_are_one_run_and_keep_losses_and_exit_code(tmp_path, started):
    python = sys.executable
    text = f"{python} train.py 600 &\n{python} train.py 700 --fail\nwait\n{python} -c 'print(1)'\nexit 5\n"
    start = script(tmp_path, text)

    plain = started(start)
    recorded = started(start, recorded=("--output", "run"))
    run = load(tmp_path / "run")

    assert plain.returncode == recorded.returncode == 5
    assert sorted(recorded.stdout.split("\n")) == sorted(plain.stdout.split("\n"))
    assert plain.stdout.count("loss") == 2
    assert sorted(recording.process.rank for recording in run.recordings) == [0, 1]
    commands = {recording.process.command: recording for recording in run.recordings}
    assert sorted(commands) == ["train.py 600", "train.py 700 --fail"]
    assert weight_bytes(commands["train.py 600"]) == 600 * 100 * 4
    assert weight_bytes(commands["train.py 700 --fail"]) == 700 * 100 * 4
    assert [len(recording.steps) for recording in run.recordings] == [3, 3]
    rank = commands["train.py 700 --fail"].process.rank
    assert run.outcome == Outcome.FAILED
    assert run.error == f"rank {rank}: RuntimeError: after three steps"
    assert not (tmp_path / "run-2").exists()


@pytest.mark.parametrize(
    "python",
    [[sys.executable], pytest.param([], marks=pytest.mark.exhaustive)],
    ids=["as a command", "as a module"],
)
def test_ranks_of_torchrun_are_recorded_and_its_agent_is_not(tmp_path, started, python):
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py", "300"]

    done = started(*python, *torchrun, recorded=("--output", "run"), OMP_NUM_THREADS="1")
    run = load(tmp_path / "run")

    assert done.returncode == 0, done.stderr
    found = [(one.process.rank, one.process.world_size, one.process.launcher) for one in run.recordings]
    assert sorted(found) == [(0, 2, "torchrun"), (1, 2, "torchrun")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "train.py"]


def test_a_launcher_by_its_path_runs_in_its_own_python(tmp_path, started):
    launcher = tmp_path / "launcher"
    launcher.write_text(f"#!{sys.executable}\nimport sys\nprint(sys.argv[1:], 'vramscope' in sys.modules)\n")
    launcher.chmod(0o755)

    done = started(str(launcher), "train.py", recorded=("--output", "run"))

    assert done.stdout == "['train.py'] False\n"


def test_children_that_train_are_recorded_by_their_phases_and_workers_of_data_loaders_are_not(
    tmp_path, started
):
    (tmp_path / "loads.py").write_text(LOADS_AND_SPAWNS)

    done = started(
        *(sys.executable, "loads.py"),
        recorded=("--output", "run"),
        PYTHONPATH=f"{ROOT}{os.pathsep}{PROGRAMS}",
    )
    run = load(tmp_path / "run")

    assert done.stdout == "56\n", done.stderr
    assert sorted(recording.process.rank for recording in run.recordings) == [0, 1]
    found = [phases_by_label(recording) for recording in run.recordings]
    assert sorted(found, key=list) == [
        {(name, phase): [phase] * 3 * N_STEPS for phase in PHASES} for name in THREADS
    ]


@pytest.mark.parametrize(
    ("program", "ended"),
    [
        ("sys.exit(3)", "SystemExit(3)"),
        ("try:\n    sys.exit(3)\nexcept SystemExit:\n    pass", "None"),
        ("thread = threading.Thread(target=sys.exit, args=(3,)); thread.start(); thread.join()", "None"),
    ],
)
def test_the_exit_code_that_a_program_gives_is_how_it_ended(program, ended):
    before = (
        "import sys, threading\n"
        "from vramscope.recorder.from_outside.ending import when_process_ends\n"
        "when_process_ends(lambda error: print(repr(error)))\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", before + program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )

    assert (done.stdout, done.returncode) == (f"{ended}\n", 3 if ended != "None" else 0)


@pytest.mark.exhaustive
def test_processes_that_number_themselves_are_a_run_beside_that_of_their_parent(tmp_path, started):
    (tmp_path / "spawns.py").write_text(SPAWNS)

    done = started(sys.executable, "spawns.py", recorded=("--output", "run"))
    ranks = load(tmp_path / "run-2").recordings

    assert done.returncode == 0, done.stderr
    assert [(one.process.rank, one.process.world_size) for one in ranks] == [(0, 2), (1, 2)]
    assert [one.process.rank for one in load(tmp_path / "run").recordings] == [0]
    # multiprocessing prints the error of a child and exits: the child has failed all the same.
    assert "ValueError: of this child" in done.stderr
    assert load(tmp_path / "run-2").error == "rank 1: ValueError: of this child"


def test_a_detached_process_is_recorded_from_attach_to_detach(tmp_path, started):
    (tmp_path / "attached.py").write_text(ATTACHED)

    done = started(sys.executable, "attached.py", recorded=("--detached", "--output", "run"))
    (recording,) = load(tmp_path / "run").recordings

    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    pid = recording.process.pid
    assert first == f"process {pid}: recording to {tmp_path}/run; `vramscope detach {pid}` ends it"
    assert second == f"process {pid}: recorded to {tmp_path}/run"
    assert len(recording.initial.segments) > 0  # the model was there before
    assert load(tmp_path / "run").outcome == Outcome.FINISHED


ATTACHED = """
import os, subprocess, sys, threading, torch
def ask():
    for word in ("attach", "detach"):
        subprocess.run([sys.executable, "-m", "vramscope", word, str(os.getpid())])
model = torch.nn.Linear(100, 100)
thread = threading.Thread(target=ask)
thread.start()
while thread.is_alive():
    model(torch.ones(5, 100)).sum().backward()
"""


SPAWNS = """
import os, torch
def work(rank):
    meet = 'file://' + os.path.abspath('meet')
    torch.distributed.init_process_group('gloo', meet, world_size=2, rank=rank)
    kept = torch.ones(1000 + rank)
    torch.distributed.barrier()
    if rank:
        raise ValueError("of this child")
if __name__ == '__main__':
    spawn = torch.multiprocessing.get_context('spawn')
    children = [spawn.Process(target=work, args=(rank,)) for rank in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
"""


def test_a_sitecustomize_of_the_program_runs_as_without_us(tmp_path, started):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.own_start = __file__\n")
    (tmp_path / "asks.py").write_text(
        "import sys, sitecustomize\n"
        "print(sys.own_start == sitecustomize.__file__, any('start_up' in place for place in sys.path))\n"
        "print('torch' in sys.modules, [name for name in sys.modules if name.startswith('vramscope')])\n"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT)])

    done = started(sys.executable, "asks.py", recorded=("--output", "run"), PYTHONPATH=path)

    assert done.stdout.splitlines() == ["True False", "False []"], done.stderr
    assert not (tmp_path / "run").exists()


def test_a_python_that_cannot_record_runs_the_program_with_one_line(started):
    done = started(sys.executable, "train.py", "50", recorded=("--output", "run", "--device", "cuda"))

    lines = [line for line in done.stderr.splitlines() if "is not recorded" in line]
    assert (done.returncode, done.stdout.startswith("loss 50")) == (0, True)
    assert len(lines) == 1
    assert "no CUDA device here" in lines[0]


def test_a_signal_reaches_the_command_and_its_end_is_the_end_of_ours(started):
    done = started("sh", "-c", "kill -TERM $$", recorded=("--quiet",))

    assert done.returncode == -15


def test_without_a_name_the_run_is_named_after_the_script(tmp_path, started):
    started(sys.executable, "train.py", "50", recorded=("--quiet",))

    (found,) = (tmp_path / "traces").iterdir()
    assert re.fullmatch(r"train-\d{8}-\d{6}", found.name)


@pytest.mark.parametrize(
    ("command", "is_launcher"),
    [
        ("python /venv/bin/torchrun --nproc-per-node 2 train.py", True),
        ("python -u -m torch.distributed.run train.py", True),
        ("python -m accelerate.commands.launch train.py", True),
        ("python -W ignore -m torch.distributed.launch train.py", True),
        ("python /site/torch/_inductor/compile_worker/__main__.py --workers=4", True),
        ("python -m vramscope serve", True),
        ("python train.py --with torchrun", False),
        ("python -m torchrunner", False),
        ("python -X dev -m train", False),
        ("python -c import-torch", False),
        ("python", False),
    ],
)
def test_launchers_and_helpers_are_recognized_by_their_command(command, is_launcher):
    assert is_no_training(command.split()) == is_launcher
