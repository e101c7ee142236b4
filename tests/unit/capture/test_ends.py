"""A recorded program ends as it would end alone: killed by the signal, or at its end, never hanging."""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from vramscope import load

pytestmark = pytest.mark.slow
RECORDED = "import sys, torch, vramscope\nblock = vramscope.record(sys.argv[1], quiet=True)\n"
ALONE = "import sys, contextlib\nblock = contextlib.nullcontext()\n"
INTERRUPTED = "with block:\n    values = [1] * 3\n    raise KeyboardInterrupt\n"
AFTERWARDS = "with block:\n    values = [1] * 3\nraise KeyboardInterrupt\n"
CAUGHT = "try:\n    with block:\n        raise KeyboardInterrupt\nexcept KeyboardInterrupt:\n    pass\n"
UNFINISHED = """
def steps():
    with block:
        model = torch.nn.Linear(8, 8)
        while True:
            model(torch.ones(2, 8)).sum().backward()
            yield
generator = steps()
for _ in range(3):
    next(generator)
"""


COLLECTED = """
import gc, threading
gc.disable()
def steps():
    itself = yield
    with block:
        torch.ones(8) + 1
        yield itself
generator = steps()
next(generator)
del [generator.send(generator)][:], generator
"""
"""A generator that nobody can reach any more, and that the collector has not come upon."""
BY_US = """
def collect(*_):
    if threading.current_thread().name.startswith("vramscope"):
        threading.setprofile(None)
        sys.setprofile(None)
        gc.collect()
        print("collected", flush=True)
threading.setprofile(collect)
"""


def program(tmp_path: Path, *parts: str) -> Path:
    file = tmp_path / f"program_{len(list(tmp_path.iterdir()))}.py"
    file.write_text("".join(map(textwrap.dedent, parts)))
    return file


def run(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*map(str, command)], cwd=cwd, capture_output=True, text=True, check=False, timeout=240
    )


@pytest.mark.parametrize(
    ("how", "end", "status"),
    [
        ("script", INTERRUPTED, -signal.SIGINT),
        ("module", INTERRUPTED, -signal.SIGINT),
        ("text", INTERRUPTED, -signal.SIGINT),
        ("script", AFTERWARDS, -signal.SIGINT),
        ("script", CAUGHT, 0),
    ],
)
def test_a_program_that_is_interrupted_ends_as_it_does_alone(
    tmp_path: Path, how: str, end: str, status: int
) -> None:
    def ended(begin: str) -> int:
        file = program(tmp_path, begin, end)
        start = {"script": [file], "module": ["-m", file.stem], "text": ["-c", file.read_text()]}[how]
        return run(sys.executable, *start, tmp_path / "run", cwd=tmp_path).returncode

    assert ended(ALONE) == status
    assert ended(RECORDED) == status


def test_vramscope_run_ends_by_the_signal_of_its_program(tmp_path: Path) -> None:
    file = program(tmp_path, "import torch\n", "torch.ones(3) + 1\nraise KeyboardInterrupt\n")
    done = run(sys.executable, "-m", "vramscope", "run", "--output", tmp_path / "run", file)

    assert done.returncode == -signal.SIGINT
    assert done.stderr.count("KeyboardInterrupt") == 2  # the line of the program and the error's name
    assert "vramscope/commands" not in done.stderr
    assert load(tmp_path / "run").recordings


@pytest.mark.parametrize("is_run", [False, True])
def test_a_generator_that_nobody_exhausts_ends_with_its_program(tmp_path: Path, is_run: bool) -> None:
    file = program(tmp_path, RECORDED, UNFINISHED)
    command = ["-m", "vramscope", "run", "--output", tmp_path / "outer"] if is_run else []
    done = run(sys.executable, *command, file, tmp_path / "run")

    assert done.returncode == 0
    assert "TypeError" not in done.stderr
    recorded = load(tmp_path / ("outer" if is_run else "run")).recordings[0]
    assert len(recorded.trace) > 0


@pytest.mark.parametrize("end", ["", "with block: torch.ones(2) + 1", "import time; time.sleep(3)"])
def test_a_block_may_be_left_by_the_collector_on_a_thread_of_vramscope(tmp_path: Path, end: str) -> None:
    # Nobody waits for the other: the thread that ends the program for our thread, and ours for its lock.
    file = program(tmp_path, RECORDED, COLLECTED, BY_US, end)
    done = run(sys.executable, file, tmp_path / "run")

    assert (done.returncode, done.stdout) == (0, "collected\n"), done.stderr
    assert "Exception ignored" not in done.stderr
    (recording,) = load(tmp_path / "run").recordings
    assert recording.outcome.value == "finished"
    assert len(recording.trace) >= 2
