"""report --at lists what was allocated at an instant and who keeps it; the page shows the same."""

import json

import pytest
import torch
from torch import nn
from vramscope.dashboard.address import Address
from vramscope.dashboard.answers import held, kept_by, totals
from vramscope.dashboard.components.panels import live_set
from vramscope.dashboard.data import Data

import vramscope
from vramscope import cli

pytestmark = pytest.mark.usefixtures("own_tensors_only")

MIB = 1 << 20


def work(kept):
    net = nn.Linear(256, 256)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        net(torch.randn(1024, 256)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(torch.zeros(MIB, dtype=torch.uint8))


@pytest.fixture
def run(tmp_path):
    history = []
    with vramscope.record(tmp_path / "run", device="simulated", quiet=True):
        work(history)
    assert len(history) == 3
    return tmp_path / "run"


def printed(capsys, *arguments):
    assert cli.main(["report", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_the_end_has_its_lines_and_who_keeps_them(run, capsys):
    # The network and its gradients are gone by then: what is left are the three tensors of the list.
    text = printed(capsys, run, "--at", "end")
    (found,) = json.loads(printed(capsys, run, "--at", "end", "--json"))["recordings"]

    assert text.startswith("\n3.00 MiB allocated at the end\n")
    (row,) = (line for line in text.splitlines() if "test_report_at.py" in line)
    assert row.split()[:5] == ["3.00", "MiB", "100.0", "%", "3"]
    assert " history " in row
    assert found["allocated_bytes"] == sum(each["bytes"] for each in found["live"]) == 3 * MIB
    assert {each["holder"] for each in found["live"]} == {"history"}


def test_the_peak_is_that_of_the_report(run, capsys):
    (whole,) = json.loads(printed(capsys, run, "--json"))["recordings"]
    (found,) = json.loads(printed(capsys, run, "--at", "peak", "--json"))["recordings"]

    assert found["live"] == whole["live_at_peak"]
    assert found["allocated_bytes"] == whole["peak"]["allocated_bytes"]


def test_the_page_of_the_same_instant_agrees(run):
    data = Data(run)
    view = data.view(Address("/peak", next(iter(data.runs.paths()))))
    at = len(view.recording.trace)

    _, rows = live_set.content(data, view, at, Address("/peak", at=at))

    assert (int(totals(data, view).allocated_bytes[at]), held(data, view, at).total_bytes) == (3 * MIB,) * 2
    assert [(row["bytes"], row["holder"]) for row in rows] == [(3 * MIB, "history")]
    assert list(kept_by(data, view, at).values()) == ["history"]


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("soon", "peak, end, or the number of events before it"),
        ("999999", "this recording has instants 0 to"),
    ],
)
def test_another_instant_is_refused_in_one_sentence(run, capsys, word, reason):
    assert cli.main(["report", str(run), "--at", word]) == 2

    assert reason in capsys.readouterr().err


def test_a_search_names_its_instant_itself(run, capsys):
    assert cli.main(["report", str(run), "--at", "end", "--where", "category:unknown"]) == 2
    assert "live:end" in capsys.readouterr().err

    assert "3 allocations found" in printed(capsys, run, "--where", "live:end")
