"""What surrounds a program is odd or broken: it is recorded all the same, and trains and ends as without."""

import subprocess
import sys

import pytest

from vramscope.loading import load

HEAD = """
import os, pathlib, socket, sys, threading, torch, vramscope
torch.manual_seed(0)
layer = torch.nn.Linear(8, 8)
def train():
    for _ in range(2):
        loss = layer(torch.ones(2, 8)).square().mean()
        loss.backward()
        print(loss.item(), flush=True)
"""
SURROUNDINGS = {
    "no working directory": "os.mkdir('gone'); os.chdir('gone'); os.rmdir(os.getcwd())",
    "the working directory raises": "os.getcwd = lambda: 1 / 0",
    "stderr raises": "sys.stderr = type('E', (), {'write': lambda *_: 1 / 0, 'flush': lambda *_: 1 / 0})()",
    "stderr exits": "sys.stderr = type('E', (), {'write': lambda *_: sys.exit(4), 'flush': lambda _: 0})()",
    "stderr is None": "sys.stderr = None",
    "no stderr": "del sys.stderr",
    "no argv": "del sys.argv",
    "odd argv": "sys.argv = [pathlib.Path('x'), 5, None, b'y']",
    "argv raises": "sys.argv = type('L', (list,), {'__iter__': lambda _: 1 / 0})(['x'])",
    "no host name": "socket.gethostname = lambda: 1 / 0",
    "JSON raises": "import json; json.dumps = json.dump = json.loads = lambda *_, **__: 1 / 0",
    "time in floats": "import time; now = time.time_ns; time.time_ns = lambda: float(now())",
    "new threads raise": "threading.settrace(lambda *_: 1 / 0)",
    "new threads raise in every line": (
        "def trace(frame, event, _): return 1 / (event != 'line') and trace\nthreading.settrace(trace)"
    ),
    "names of modules fail": "layer.named_modules = lambda *_, **__: 1 / 0",
    "names of modules exit": "layer.named_modules = lambda *_, **__: sys.exit(3)",
    "names of modules never end": "layer.named_modules = lambda *_, **__: iter(lambda: ('x', layer), None)",
    "names of parameters fail": "layer.named_parameters = lambda *_, **__: 1 / 0",
    "names of parameters end it": "layer.named_parameters = lambda *_, **__: exec('raise BaseException')",
}


def run(program, folder):
    return subprocess.run(
        [sys.executable, "-c", f"{HEAD}\n{program}\nos._exit(7)"],
        cwd=folder, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


@pytest.fixture(scope="module")
def losses(tmp_path_factory):
    """What the program prints without a recorder."""
    return run("train()", tmp_path_factory.mktemp("control")).stdout


# What fails in the same place as another, which stays.
_DOUBLES = ("stderr is None", "no argv", "names of modules fail", "names of parameters fail", "stderr raises")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.exhaustive if name in _DOUBLES else ()) for name in SURROUNDINGS],
)
def test_a_program_in_odd_surroundings_is_recorded(tmp_path, name, losses):
    path = tmp_path / "run"
    # os._exit: without sys.stderr, Python's own exit would differ. The block is left before.
    done = run(f"{SURROUNDINGS[name]}\nwith vramscope.record({str(path)!r}):\n    train()", tmp_path)

    assert (done.returncode, done.stdout) == (7, losses), done.stderr
    (recording,) = load(path).recordings
    assert recording.outcome.value == "finished"
    assert len(recording.trace)
    assert not recording.notes


@pytest.mark.parametrize("name", ["showwarning", "warn"])
def test_a_warning_is_told_where_the_program_raises_in_warnings(tmp_path, name, losses):
    """The recording cannot begin: there is a file in the place of its directory's parent."""
    (tmp_path / "file").touch()
    raises = f"import warnings; warnings.{name} = lambda *_, **__: 1 / 0"
    done = run(f"{raises}\nwith vramscope.record({str(tmp_path / 'file' / 'run')!r}):\n    train()", tmp_path)

    assert (done.returncode, done.stdout) == (7, losses), done.stderr
    assert done.stderr.count("stopped recording") == 1


def test_a_program_whose_open_raises_goes_on_and_is_told(tmp_path, losses):
    patched = "import builtins, io; io.open = builtins.open = lambda *_, **__: 1 / 0"
    done = run(f"{patched}\nwith vramscope.record({str(tmp_path / 'run')!r}):\n    train()", tmp_path)

    assert (done.returncode, done.stdout) == (7, losses), done.stderr
    assert done.stderr.count("vramscope stopped recording, training goes on") <= 1


def test_what_was_deleted_stays_deleted(tmp_path):
    recorded = f"with vramscope.record({str(tmp_path / 'run')!r}): train()"
    done = run(f"del sys.stderr\n{recorded}\nprint(hasattr(sys, 'stderr'), flush=True)", tmp_path)

    assert done.stdout.splitlines()[-1] == "False"


STRAY = """
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as modes
block = vramscope.record(sys.argv[1], device="simulated", quiet=True)
def on_another(do, *arguments):
    thread = threading.Thread(target=do, args=arguments)
    thread.start()
    thread.join()
def leave():
    on_another(block.__exit__, None, None, None)
block.__enter__(); train(); leave(); train(); print(len(modes()), sys.getprofile(), flush=True)
block.__enter__(); train(); leave(); block.__enter__(); train(); print(len(modes()), flush=True)
block.__exit__(None, None, None); train(); print(len(modes()), flush=True)
block.__enter__(); profile = lambda *_: None; sys.setprofile(profile); leave(); train()
print(sys.getprofile() is profile, flush=True); sys.setprofile(None); train(); print(len(modes()), flush=True)
"""


def test_a_block_that_another_thread_leaves_leaves_nothing_on_its_thread(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", f"{HEAD}\n{STRAY}", tmp_path / "run"],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    words = [line for line in done.stdout.splitlines() if not line.startswith("0.")]
    assert words == ["0 None", "1", "0", "True", "0"], done.stderr
