"""Programs that train in several threads at once are recorded exactly, and live."""

import gc
import json
import os
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from standin_fixtures import TORCH, launcher_of
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import vramscope
from vramscope.capture import holders
from vramscope.capture.cuda import history
from vramscope.capture.holders import growth_watch
from vramscope.capture.hooks import gradients, open_phases
from vramscope.capture.labels import Labeler
from vramscope.model.marks import Category
from vramscope.model.trace import Action

ROOT = Path(__file__).parents[3]
SOAK = ROOT / "benchmarks" / "soak_threads.py"
LIMIT_S = 240


def soaked(python, *options):
    """What a try of the soak says, after it ended by itself."""
    command = [python, SOAK, "--seconds", "3", "--threads", "8", *options]
    done = subprocess.run(
        list(map(str, command)),
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, last = done.stdout.splitlines()
    assert last.startswith("1 of 1 tries without harm")
    return json.loads(first.partition("; ")[2])


@pytest.mark.slow
@pytest.mark.exhaustive
def test_eight_threads_train_at_once_on_the_simulated_device():
    assert soaked(sys.executable, "--device", "simulated")["steps"] > 0


@pytest.mark.slow
@pytest.mark.standin
@pytest.mark.parametrize("mode", ["events", pytest.param("counters", marks=pytest.mark.exhaustive)])
def test_eight_threads_train_at_once_on_cuda(standin, mode):
    assert standin == launcher_of(TORCH)
    assert soaked(standin, "--device", "cuda", "--mode", mode)["steps"] > 0


def test_gradients_are_not_read_while_another_thread_runs_backward():
    weight = torch.ones(4, requires_grad=True)
    weight.sum().backward()

    assert gradients.gradients_now([weight])[0] is weight.grad
    gradients.backwards[-1] = 1
    try:
        assert gradients.gradients_now([weight]) == []
    finally:
        del gradients.backwards[-1]


def test_a_backward_pass_of_another_thread_is_seen_without_a_hook():
    is_inside, is_over = threading.Event(), threading.Event()

    def wait(_):
        is_inside.set()
        assert is_over.wait(60)

    def work():
        weight = torch.ones(4, requires_grad=True)
        weight.register_hook(wait)
        weight.sum().backward()

    thread = threading.Thread(target=work)
    thread.start()
    assert is_inside.wait(60)
    during = gradients.is_backward_elsewhere()
    is_over.set()
    thread.join()

    assert during
    assert not gradients.is_backward_elsewhere()


def test_the_end_of_a_backward_pass_looks_at_the_models_of_its_own_thread_only():
    named = []

    def add(storages, category, names, _):
        named.extend((category, name) for name in names)
        return [True] * len(storages)

    labeller = Labeler(add)
    mine, theirs = nn.Linear(2, 2), nn.Linear(3, 3)
    for model in (mine, theirs):
        model(torch.ones(1, model.in_features)).sum().backward()
    labeller.module(mine)
    thread = threading.Thread(target=labeller.module, args=(theirs,))
    thread.start()
    thread.join()
    named.clear()

    labeller.gradients()

    assert named == [(Category.GRADIENT, "gradient of weight"), (Category.GRADIENT, "gradient of bias")]
    assert len(labeller._roots) == 2


def test_threads_that_see_a_storage_first_at_once_count_it_once(recorded):
    with recorded() as recording:
        kept = torch.ones(256)
        storages = recording.capture._storages
        # As where two threads have both asked whether it is known before one of them says so.
        storages.live.clear()
        storages.see(kept, None)
        del kept

    trace = recording.sink.trace
    assert np.count_nonzero(trace.action == Action.ALLOC) == 1
    assert recording.requested_at(len(trace)) == recording.requested_at(0)


def test_a_block_that_another_thread_leaves_ends_the_recording(tmp_path):
    """Our mode stays on the thread that entered, as no other can take it off, until that leaves one."""

    def sizes():
        (recording,) = vramscope.load(tmp_path / "run").recordings
        return recording.trace.size[recording.trace.action == Action.ALLOC].tolist()

    run = vramscope.record(tmp_path / "run", device="simulated", quiet=True)
    run.__enter__()
    kept = [torch.ones(1001)]
    other = threading.Thread(target=run.__exit__, args=(None, None, None))
    other.start()
    other.join()
    for n in (3001, 3002):
        torch.ones(n)
    run.flush()

    assert sizes().count(4004) == 1
    assert not {12004, 12008} & set(sizes())
    with run:
        kept.append(torch.ones(5001))
    assert not _get_current_dispatch_mode_stack()
    assert sizes().count(20004) == 1


def test_parallel_replicas_are_recorded_exactly(recorded):
    """What DataParallel does: replicas run forward in threads that end before the forward does."""

    class Parallel(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

        def forward(self, x):
            out = [None] * 4

            def run(i):
                out[i] = self.parts[i](x)

            threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return torch.stack(out).sum()

    torch.manual_seed(0)
    model = Parallel()
    bare = [model(torch.ones(2, 8)).item() for _ in range(3)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    losses = []
    with recorded() as recording:
        for _ in range(3):
            loss = model(torch.ones(2, 8))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    names = set(recording.sink.labels.names)
    assert losses == bare
    assert {f"gradient of parts.{i}.weight" for i in range(4)} <= names


def test_hooks_on_autograds_threads_may_train_themselves(recorded):
    """A hook that runs a model and a backward pass of its own within a backward pass."""
    inner, outer = nn.Linear(4, 1), nn.Linear(4, 4)
    seen = []

    def hook(gradient):
        with torch.enable_grad():
            inner(gradient.detach()).sum().backward()
        seen.append(inner.weight.grad.clone())

    with recorded() as recording:
        for _ in range(3):
            y = outer(torch.ones(2, 4))
            y.register_hook(hook)
            y.sum().backward()

    assert len(seen) == 3
    assert "gradient of weight" in recording.sink.labels.names
    assert not gradients.backwards


def test_nobody_looks_for_holders_while_another_thread_trains(recorded):
    is_over = threading.Event()
    is_ready = threading.Event()

    def work():
        model = nn.Linear(2, 2)
        model(torch.ones(1, 2)).sum().backward()
        is_ready.set()
        assert is_over.wait(60)

    with recorded() as recording:
        nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()
        thread = threading.Thread(target=work)
        thread.start()
        assert is_ready.wait(60)
        recording.capture.watch.explain(None)
        is_over.set()
        thread.join()

    assert [note.code for note in recording.sink.notes] == ["holders_unknown"]


def test_holders_are_looked_for_while_the_threads_of_a_pool_wait_for_work(recorded, monkeypatch):
    def evaluate():
        return nn.Linear(2, 2)(torch.ones(1, 2))

    searched = []
    monkeypatch.setattr(
        growth_watch, "search", lambda *asked: searched.append(asked) or holders.SearchResult([], True)
    )
    with recorded() as recording, ThreadPoolExecutor(max_workers=1) as pool:
        pool.submit(evaluate).result()
        while open_phases.threads_at_work():  # the result is there before the task's frames are gone
            time.sleep(0.001)
        recording.capture.watch.explain(None)

    assert len(searched) == 1
    assert not recording.sink.notes


def test_the_look_at_other_threads_keeps_no_local_of_its_callers_alive():
    """A dict of all frames that lies in one of them is a cycle, and keeps what the walk reached."""

    class Thing:
        pass

    def caller():
        thing = Thing()
        open_phases.threads_at_work()
        return weakref.ref(thing)

    gc.disable()
    try:
        seen = caller()
        assert seen() is None
    finally:
        gc.enable()


def test_a_search_ends_when_another_thread_begins_a_phase(monkeypatch):
    """Between two objects of the walk, as a pool's thread that gets a task would."""
    work_off, rounds = holders._HolderWalk._is_over, []

    def phase_begins(walk):
        rounds.append(walk)
        open_phases.state.n_begun += 1
        return work_off(walk)

    many = [[i] for i in range(1000)]
    monkeypatch.setattr(holders._HolderWalk, "_is_over", phase_begins)
    found = holders.search(60.0, sys._getframe())

    assert many
    assert not found.is_complete
    assert len(rounds) == 1


def test_a_reading_hides_no_module_that_another_thread_imports(monkeypatch):
    """torch._inductor is hidden from torch while the history is read, unless its import has begun."""
    monkeypatch.delitem(sys.modules, "torch._inductor", raising=False)
    hidden = history._lazy_modules()
    monkeypatch.setitem(sys.modules, "torch._inductor", ModuleType("torch._inductor"))

    assert hidden is torch._lazy_modules
    assert history._lazy_modules() is not torch._lazy_modules
