"""A process that forks while vramscope works beside it: what a thread of ours was at is never over there."""

import textwrap
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[3]
TRAINING = """
    import json, sys, threading
    import torch, vramscope

    class Seen:
        # Notes which modules are looked for on threads of vramscope.
        modules = []

        def find_spec(self, name, path=None, target=None):
            if threading.current_thread().name.startswith("vramscope-"):
                self.modules.append(name)

    model = torch.nn.Linear(64, 64, device={place!r})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, kept = [], []
    with vramscope.record({run!r}, device={device!r}) as recorder:
        sys.meta_path.insert(0, Seen())
        for _ in range(100):
            loss = model(torch.ones(512, 64, device={place!r})).square().mean()
            loss.backward(retain_graph=True)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss)
            recorder.step()
    print(json.dumps(Seen.modules))
"""
DURING_AN_IMPORT = """
    import os, signal, sys, threading, time
    from importlib.util import spec_from_loader
    from vramscope import stalls
    from vramscope.recorder.pipeline import import_everything

    class Slow:
        # The import of numpy.ma takes until the fork waits for it, or is over.
        is_reached = threading.Event()

        def find_spec(self, name, path=None, target=None):
            return spec_from_loader(name, self) if name == "numpy.ma" else None

        def create_module(self, spec):
            return None

        def exec_module(self, module):
            self.is_reached.set()
            while not children and not waits():
                time.sleep(0.001)

    def waits():
        frame = sys._current_frames()[threading.main_thread().ident]
        return frame.f_code is stalls._await_imports.__code__

    children = []
    for name in [name for name in sys.modules if name.startswith("numpy.ma")]:
        del sys.modules[name]
    sys.meta_path.insert(0, Slow())
    thread = threading.Thread(target=import_everything)
    thread.start()
    Slow.is_reached.wait()
    children.append(os.fork())
    if not children[0]:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        import numpy.ma
        import_everything()
        os._exit(7)
    thread.join()
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]))
"""


def check_training(device, place, run_code, tmp_path):
    program = textwrap.dedent(TRAINING).format(device=device, place=place, run=str(tmp_path / "run"))
    done = run_code(program, cwd=tmp_path, variables={"PYTHONPATH": ROOT})
    assert done.returncode == 0, done.stderr
    assert "losses" in done.stderr, "the leak was not looked for"
    assert done.stdout == "[]\n"


def test_threads_of_ours_import_nothing_while_the_program_runs(plain_forks, tmp_path):
    check_training("simulated", "cpu", plain_forks.run_code, tmp_path)


def test_the_same_on_cuda(forks, tmp_path):
    check_training("cuda", "cuda", forks.run_code, tmp_path)


def test_a_fork_waits_for_an_import_of_ours(plain_forks, tmp_path):
    done = plain_forks.run_code(
        textwrap.dedent(DURING_AN_IMPORT), cwd=tmp_path, variables={"PYTHONPATH": ROOT}
    )
    assert done.returncode == 7, done.stderr
