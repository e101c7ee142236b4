"""Findings have one order, the gravest first, and a finding that many ranks share is stated once."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import vramscope
from vramscope.analysis.findings import (
    collect,
    findings,
    located,
    ranked,
    ranks_words,
    shared,
    with_modules,
)
from vramscope.model.codes import Severity
from vramscope.model.device import Device, Process
from vramscope.model.finding import Finding
from vramscope.model.marks import MarkKind, Marks
from vramscope.model.recording import Recording
from vramscope.model.stacks import StackBuilder
from vramscope.model.trace import Action

TORCH = "/opt/lib/python3.11/site-packages/torch/nn/functional.py"


def found(kind: str, severity: str, n_bytes: int | None = None, claim: str = "", **rest) -> Finding:
    return Finding(kind, severity, claim or f"{kind} of {n_bytes} bytes", n_bytes=n_bytes, **rest)


def on(rank: int, device: int = 0) -> Recording:
    return Recording(process=Process(rank=rank), device=Device(index=device))


def test_errors_come_before_warnings_and_the_most_bytes_first_within_each():
    given = [
        found("a", "info", 9),
        found("b", "warning", 1),
        found("c", "warning", 5),
        found("d", "error", 0),
    ]

    assert [finding.kind for finding in ranked(given)] == ["d", "c", "b", "a"]
    assert [severity.value for severity in Severity] == ["error", "warning", "info"]


def test_what_is_left_at_the_end_comes_after_what_lowers_the_peak():
    given = [
        found("workspace_left", "info", 64),
        found("empty_cache", "info", 99),
        found("gradients_late", "info", 2),
    ]

    assert ranked(given)[0].kind == "gradients_late"


def test_the_error_of_a_later_device_comes_before_the_warnings_of_the_first():
    rows = located([(on(0), [found("a", "warning", 9)]), (on(0, 1), [found("oom", "error", 1)])])

    assert [(row.finding.kind, row.rank, row.device) for row in rows] == [("oom", 0, 1), ("a", 0, 0)]


def test_what_differs_in_numbers_alone_is_stated_once_with_its_ranks():
    rows = located(
        (on(rank), [found("leak", "warning", 100 + rank, f"{rank}.5 MiB grow", file="a.py", line=3)])
        for rank in range(64)
    )
    rows += located([(on(7), [found("leak", "warning", 1, "2.0 MiB grow", file="a.py", line=4)])])

    once = shared(rows)

    assert [(each.finding.n_bytes, each.rank, ranks_words(each.of), each.differs) for each in once] == [
        (163, 63, "ranks 0-63", True),
        (1, 7, "rank 7", False),
    ]


def test_ranks_are_named_as_ranges_and_devices_where_they_tell_more():
    assert ranks_words([(0, 0)]) == "rank 0"
    assert ranks_words([(0, 0), (1, 0), (2, 0), (5, 0)]) == "ranks 0-2, 5"
    assert ranks_words([(0, 0), (0, 1)]) == "rank 0, devices 0-1"
    assert ranks_words([(3, 1)]) == "rank 3, device 1"
    assert ranks_words([(0, 0), (1, 1)]) == "ranks 0-1"


def test_every_analysis_but_the_peak_is_asked_once():
    asked: list[str] = []
    recording = Recording()

    def ask(name: str) -> object:
        asked.append(name)
        return getattr(recording, name)()

    assert collect(ask) == []
    assert "peak" not in asked
    assert len(set(asked)) == len(asked)
    assert {"leaks", "oom", "fragmentation", "waterfall"} <= set(asked)


def test_a_finding_has_the_module_of_its_line(recording):
    builder = StackBuilder()
    mlp = builder.add([("linear", TORCH, 1), ("forward", "/home/me/model.py", 31)])
    loss = builder.add([("<module>", "/home/me/train.py", 9)])
    marks = Marks.of(
        kind=[MarkKind.MODULE] * 3, event=[0, 1, 2], name=[1, 2, 0], names=("", "h.0.mlp", "h.1.mlp")
    )
    made = replace(
        recording(
            (Action.ALLOC, 0, 512, mlp),
            (Action.ALLOC, 4096, 512, mlp),
            (Action.ALLOC, 8192, 512, loss),
            stacks=builder.build(),
        ),
        marks=marks,
    )
    given = [
        found("leak", "warning", file="/home/me/model.py", line=31),
        found("leak", "warning", file="/home/me/train.py", line=9),
        found("leak", "warning"),
        found("oom", "error", file="/home/me/model.py", line=31, module="h.1.mlp"),
    ]

    assert [each.module for each in with_modules(made, given)] == ["h.*.mlp", None, None, "h.1.mlp"]


@pytest.mark.usefixtures("own_tensors_only")
def test_what_a_hook_of_gradients_keeps_is_of_no_module(tmp_path):
    """Backward runs the hook after that of the layer behind it, whose module says nothing of the hook."""
    net, kept = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 8)), []
    net[2].weight.register_hook(lambda gradient: kept.append(gradient.clone().repeat(64, 1)))
    with vramscope.record(tmp_path, device="simulated", quiet=True):
        for _ in range(12):
            net(torch.randn(64, 128)).sum().backward()
            net.zero_grad()
    (recording,) = vramscope.load(tmp_path).recordings

    (found,) = [each for each in findings(recording) if each.kind == "leak"]

    assert (found.cause, found.module) == ("hook", None)
