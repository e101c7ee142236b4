"""Every allocation of a forward is attributed to the module that made it, also after it raised."""

import gc
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from standin_fixtures import HAS_WORKSPACE_PER_PRODUCT, IS_BEFORE_2_13
from torch import nn
from torch.utils.checkpoint import checkpoint

from vramscope.capture.hooks.modules import ModuleLog
from vramscope.loading import load
from vramscope.model.marks import MarkKind
from vramscope.model.trace import Action, Trace

ROOT = Path(__file__).parents[3]
PROGRAMS = Path(__file__).parent / "programs"


def birthplaces(sink):
    """Path of the module at each birth, with its requested bytes."""
    marks, trace = sink.marks, sink.trace
    changes = marks.rows(marks.kind == MarkKind.MODULE)
    found, at = [], 0
    path = ""
    for event in np.flatnonzero(trace.action == Action.ALLOC).tolist():
        while at < len(changes) and changes.event[at] <= event:
            path = changes.names[changes.name[at]]
            at += 1
        found.append((path, int(trace.size[event])))
    return found


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(4, width)

    def forward(self, x):
        return self.inner(x).exp()


class Model(nn.Module):
    """Block *n* makes results of its own width, so that a size shows which block made it."""

    def __init__(self, *, again=False):
        super().__init__()
        self.again = again
        self.blocks = nn.ModuleList([Block(10), Block(20)])

    def forward(self, x):
        for block in self.blocks:
            out = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return out.sin()


def made(model, recorded):
    with recorded() as recording:
        model(torch.ones(1, 4, requires_grad=True))
    return [place for place in birthplaces(recording.sink) if place[1] in (40, 80)]


@pytest.mark.parametrize("again", [False, True])
def test_each_allocation_is_the_innermost_modules(recorded, again):
    assert made(Model(again=again), recorded) == [
        ("blocks.0.inner", 40),
        ("blocks.0", 40),
        ("blocks.1.inner", 80),
        ("blocks.1", 80),
        ("(root)", 80),
    ]


def test_a_checkpoints_second_run_is_its_modules(recorded):
    with recorded() as recording:
        result = Model(again=True)(torch.ones(1, 4, requires_grad=True))
        recording.capture.flush()
        n_forward = len(birthplaces(recording.sink))
        result.sum().backward()
    again = birthplaces(recording.sink)[n_forward:]

    # Block 0's result is not used.
    assert ("blocks.1.inner", 80) in again
    assert not [path for path, _ in again if path.startswith("blocks.0")]


def test_after_an_exception_nobody_is_running(recorded):
    with recorded() as recording:
        with pytest.raises(RuntimeError):
            Model()(torch.ones(1, 5))
        between = torch.ones(100)
        Model()(torch.ones(1, 4))
    del between

    assert ("", 400) in birthplaces(recording.sink)
    assert ("blocks.0.inner", 40) in birthplaces(recording.sink)


def test_a_second_root_has_its_class_before_its_paths(recorded):
    with recorded() as recording:
        maker, critic = Block(10), nn.Sequential(nn.Linear(10, 20))
        critic(maker(torch.ones(1, 4)))
        critic[0](torch.ones(1, 10))
    names = set(recording.sink.labels.names)

    assert {"inner.weight", "Sequential.0.weight"} <= names
    of_size = [path for path, size in birthplaces(recording.sink) if size == 80]
    assert of_size == ["", "Sequential.0", "Sequential.0"]  # first the bias itself


def test_a_path_goes_with_its_module():
    log = ModuleLog(is_timed=False)
    model = nn.Sequential(nn.ReLU())
    log.learn(model)
    assert [log.names[at] for at in log.ids.values()] == ["(root)", "0"]

    del model
    gc.collect()
    log.forget()

    assert not log.ids


def trace_at(*times_us):
    n = len(times_us)
    return Trace.of(
        action=[Action.ALLOC] * n, time_ns=[1000 * time for time in times_us], address=range(1, n + 1),
        size=[1] * n, block_size=[512] * n,
    )  # fmt: skip


def places(marks):
    """Event and path of each mark."""
    return [(event, marks.names[name]) for event, name in zip(marks.event, marks.name, strict=True)]


def test_changes_are_placed_by_time_before_the_allocations_that_they_explain(monkeypatch):
    log = ModuleLog(is_timed=True)
    log.learn(nn.Sequential(nn.ReLU()))
    for time_us, index in ((10, 1), (20, 2), (25, 1), (30, 0), (40, 1), (41, 2)):
        monkeypatch.setattr("vramscope.capture.hooks.modules.time_ns", lambda now=time_us: 1000 * now)
        log.changed(index)

    marks = log.marks(trace_at(5, 12, 15, 22, 35))
    log.cut(45_000)

    assert places(marks) == [(0, ""), (1, "(root)"), (3, "0"), (4, "")]
    assert places(log.marks(trace_at(50))) == [(0, "0")]


def test_a_request_that_failed_outside_of_a_module_is_in_none(monkeypatch):
    log = ModuleLog(is_timed=True)
    log.learn(nn.Sequential(nn.ReLU()))
    for time_us, index in ((10, 1), (30, 0)):
        monkeypatch.setattr("vramscope.capture.hooks.modules.time_ns", lambda now=time_us: 1000 * now)
        log.changed(index)
    trace = trace_at(15, 35)

    assert places(log.marks(replace(trace, action=np.array([Action.ALLOC, Action.OOM], "u1")))) == [
        (0, "(root)"),
        (1, ""),
    ]


def test_changes_after_a_reading_are_kept_for_the_next_one(monkeypatch):
    """The training goes on while another thread writes what it has read until 25 µs."""
    log = ModuleLog(is_timed=True)
    log.learn(nn.Sequential(nn.ReLU()))
    for time_us, index in ((10, 1), (20, 2), (30, 1), (40, 0)):
        monkeypatch.setattr("vramscope.capture.hooks.modules.time_ns", lambda now=time_us: 1000 * now)
        log.changed(index)

    log.cut(25_000)

    assert places(log.marks(trace_at(27, 32, 45))) == [(0, "0"), (1, "(root)"), (2, "")]
    log.cut(50_000)
    assert places(log.marks(trace_at(60))) == [(0, "")]


ON_CUDA = """
import json, time, torch, vramscope
from torch import nn
from hand_labelled import Truth
torch.set_default_device("cuda")
n_born = lambda: torch.cuda.memory_stats()["allocation.all.allocated"]

class Linear(nn.Linear):
    def forward(self, x):
        with now(self.path):
            return super().forward(x)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = Linear(32, 64), Linear(64, 32)

    def forward(self, x):
        with now(self.path):
            return x + self.down(self.up(x).relu())

model = nn.Sequential(*[Block() for _ in range(20)])
for path, module in model.named_modules():
    module.path = path
torch.ones(8, 8) @ torch.ones(8, 8)
with vramscope.record("run", quiet=True):
    there = n_born()
    now = Truth(lambda: n_born() - there)
    for _ in range(5):
        model(torch.ones(16, 32)).sum().backward()
    now.settle()
time.sleep(0.3)
print(json.dumps(now.labels))
"""


@pytest.mark.standin
@pytest.mark.skipif(IS_BEFORE_2_13, reason="older versions make other allocations")
def test_by_time_every_allocation_of_a_forward_on_cuda_finds_its_module(forks, tmp_path):
    done = forks.run_code(ON_CUDA, cwd=tmp_path, variables={"PYTHONPATH": f"{ROOT}{os.pathsep}{PROGRAMS}"})
    assert done.returncode == 0, done.stderr
    truth = json.loads(done.stdout)
    (recording,) = load(tmp_path / "run").recordings
    places = birthplaces(recording)

    assert len(places) == len(truth)
    asked = [(label, path) for label, (path, _) in zip(truth, places, strict=True) if label != "between"]
    n_workspaces = 2 * HAS_WORKSPACE_PER_PRODUCT
    assert len(asked) == 5 * 20 * (4 + n_workspaces)  # two products, the relu and the sum of each block
    assert sum(label == path for label, path in asked) >= 0.99 * len(asked)
