"""All ranks are a page, however many there are, and the same answer wherever they are read."""

import json
import os
import socket

import numpy as np
import pytest
from captures import genuine_file

from vramscope.analysis.rank_comparison import compare_ranks
from vramscope.cli import main
from vramscope.commands._comparison_page import comparison
from vramscope.commands._document import Grid
from vramscope.fleet import ComparedRun
from vramscope.model.device import Device, Process
from vramscope.model.marks import MarkKind, Marks, Note
from vramscope.model.rank_summary import DeviceSummary, Failure, LineBytes, PeakPlace, RankSummary, StepRows
from vramscope.model.recording import Outcome
from vramscope.model.stacks import Frame
from vramscope.model.trace import Action, Trace
from vramscope.store.summaries import SUMMARY_FILE
from vramscope.store.write.writer import Writer

MIB = 1 << 20


def rank_of_a_bad_day(rank, n_ranks):
    """Nearly every rank has something of its own: a failure, a note, a line, an amount."""
    random = np.random.default_rng(rank)
    n_bytes = int(random.integers(100, 100_000)) * MIB
    line = LineBytes(n_bytes, 1, (Frame("f" * 300, f"/net/{rank}.py", rank),), "mm")
    n = 40
    steps = StepRows.of(
        step=range(n),
        n_steps=[1] * n,
        start_ns=range(n),
        end_ns=range(1, n + 1),
        allocated=random.integers(0, n_bytes, n),
        reserved=random.integers(0, n_bytes, n),
    )
    device = DeviceSummary(
        device=Device(0, uuid=f"GPU-{rank // 2}"),
        n_events=1000,
        peak={name: PeakPlace(n_bytes, 1, 1) for name in ("allocated", "reserved")},
        lines=(line,),
        steps=steps,
        failure=Failure(3, rank, 5, 6, 7, (line,)) if rank % 3 else None,
        notes=(Note(f"code{rank}", "a note " * 100),),
    )
    outcome = list(Outcome)[rank % 4]
    process = Process(rank, n_ranks, f"node{rank}", 1)
    return RankSummary(process, outcome, "OutOfMemoryError: " + "x" * 2000, 1, 2, (device,))


def test_a_file_of_another_tool_is_called_so_with_the_command_that_opens_it(capsys):
    assert main(["ranks", str(genuine_file("amp"))]) == 2

    said = capsys.readouterr().err
    assert "a file (torch snapshot), and no run whose ranks could be compared" in said
    assert f"vramscope report {genuine_file('amp')}" in said


@pytest.mark.parametrize("n_ranks", [2, 300, 1024])
def test_the_comparison_of_any_job_is_at_most_45_lines(n_ranks):
    summaries = [rank_of_a_bad_day(rank, 2 * n_ranks) for rank in range(0, 2 * n_ranks, 2)]
    found = ComparedRun("run", compare_ranks(summaries), tuple(summaries), {}, ((3, "gone"),) * 50, (), ())
    n_lines = sum(2 + len(b.rows) if isinstance(b, Grid) else 1 for b in comparison(found))

    assert n_lines <= 45


@pytest.fixture
def job(tmp_path):
    """A run of twelve ranks on two hosts: rank 5 is fuller, rank 7 fails, rank 9 is missing."""
    for rank in range(12):
        if rank != 9:
            record(tmp_path / "run", rank)
    return tmp_path / "run"


def record(run, rank):
    process = Process(rank, 12, f"node{rank // 6}" if rank else socket.gethostname(), os.getpid())
    device = Device(0, "cuda", "a card", 80 << 30, f"GPU-{rank}")
    writer = Writer(run, source="cuda", process=process, devices=[device], started_ns=10**18 + rank)
    writer.stacks([(0, "train", "/net/train.py", 7), (0, "extra", "/net/extra.py", 66)])
    rows, times = [(Action.ALLOC, 4096, 100 * MIB, 1)], [10**18]
    if rank == 5:
        rows.append((Action.ALLOC, 1 << 40, 9 * MIB, 2))
        times.append(10**18)
    marks = []
    for step in range(6):
        now = 10**18 + (step + 1) * 10**9
        rows += [(action, 1 << 30, 50 * MIB, 1) for action in range(3)]
        times += [now] * 3
        marks.append((MarkKind.STEP, now, len(rows)))
    if rank == 7:
        rows.append((Action.OOM, 0, 10**12, 1))
        times.append(10**18 + 8 * 10**9)
    action, address, size, stack = zip(*rows, strict=True)
    block = [0 if a == Action.OOM else n for a, n in zip(action, size, strict=True)]
    trace = Trace.of(
        action=action, time_ns=times, address=address, size=size, block_size=block, stack_id=stack
    )
    writer.append(trace, 0)
    kind, time_ns, event = zip(*marks, strict=True)
    writer.append(Marks.of(kind=kind, time_ns=time_ns, event=event), 0)
    if rank == 7:
        writer.close(Outcome.FAILED, "OutOfMemoryError: tried to allocate")
    else:
        writer.close(Outcome.FINISHED)


def as_json(capsys, *words):
    assert main(["ranks", *map(str, words), "--json"]) == 0
    return capsys.readouterr().out


def test_the_odd_the_failed_and_the_missing_are_named_with_their_lines(job, capsys, documented):
    found = json.loads(as_json(capsys, job))

    documented("ranks", found)
    assert (found["world_size"], found["ranks"], found["missing"]) == (12, 11, [9])
    assert [(each["rank"], each["outcome"]) for each in found["ended"]] == [(7, "failed")]
    assert [(each["rank"], each["why"], each["bytes"]) for each in found["outliers"]] == [
        (5, "more", 9 * MIB)
    ]
    assert found["outliers"][0]["where"] == {"file": "/net/extra.py", "line": 66, "function": "extra"}
    assert found["first_failure"]["rank"] == 7
    assert found["first_failure"]["requested_bytes"] == 10**12
    (group,) = found["groups"]
    assert group["ranks"] == [rank for rank in range(12) if rank != 9]
    assert group["peak_allocated_bytes"] == {"median": 150 * MIB, "max": 159 * MIB}


def test_the_second_answer_comes_from_the_summaries_and_is_the_same(job, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("VRAMSCOPE_CACHE", str(tmp_path / "cache"))
    before = {path: path.read_bytes() for path in job.rglob("*") if path.is_file()}
    first = as_json(capsys, job)
    monkeypatch.setattr("vramscope.fleet.load", None)

    assert as_json(capsys, job) == first

    assert {path: path.read_bytes() for path in job.rglob("*") if path.is_file()} == before
    assert not [path for path in before if path.name == SUMMARY_FILE]


def test_a_summary_is_made_anew_for_another_recording_of_the_same_size(job, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("VRAMSCOPE_CACHE", str(tmp_path / "cache"))
    as_json(capsys, job)
    manifest = job / "rank0" / "manifest.json"
    text = manifest.read_text()
    manifest.unlink()
    manifest.write_text(text)
    monkeypatch.setattr("vramscope.fleet.load", None)

    with pytest.raises(TypeError, match="not callable"):
        as_json(capsys, job)


def test_one_process_and_a_pool_give_the_same_bytes(job, capsys, monkeypatch, tmp_path):
    from vramscope.commands import _crew

    answers = []
    for n_cores in (1, 3):
        monkeypatch.setenv("VRAMSCOPE_CACHE", str(tmp_path / f"cache of {n_cores}"))
        monkeypatch.setattr(_crew, "_n_cores", lambda n=n_cores: n)
        answers.append(as_json(capsys, job))

    assert answers[0] == answers[1]


def test_what_cannot_be_read_is_named(job, capsys):
    (job / "rank3" / "manifest.json").write_text("{")
    (job / "rank4" / "manifest.json").write_bytes((job / "rank2" / "manifest.json").read_bytes())
    (job / "rank2" / SUMMARY_FILE).unlink(missing_ok=True)
    found = json.loads(as_json(capsys, job))

    assert [each["rank"] for each in found["unreadable"]] == [3, 4]
    assert found["missing"] == [3, 4, 9]


def test_a_report_of_many_ranks_begins_with_the_comparison_and_is_a_page(job, capsys):
    assert main(["report", str(job)]) == 0
    shown = capsys.readouterr().out

    assert len(shown.splitlines()) <= 60
    assert "nothing was recorded by rank 9" in shown
    assert "rank 7, device 0" in shown
    assert "the first to fail" in shown
    assert (
        "rank 5 (node0) peaks 9.00 MiB above its group (150 MiB); 9.00 MiB more at net/extra.py:66 extra"
        in shown
    )


def test_an_address_without_ray_is_refused(job, capsys):
    assert main(["ranks", str(job), "--address", "auto"]) == 2
    assert "--engine ray" in capsys.readouterr().err


def test_nothing_there_is_one_line(tmp_path, capsys):
    assert main(["ranks", str(tmp_path / "no")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
