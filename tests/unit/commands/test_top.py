"""All runs and ranks of a folder are rows, live, at 80 columns, from the answers that other views show."""

import io
import json
import os
import pty
import select
import shutil
import socket
import subprocess
import sys
import termios
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from vramscope.analysis.pace import pace_of_rows
from vramscope.cli import main
from vramscope.commands._top_page import TopState, frame, names_of, ordered
from vramscope.fleet.standings import RankStanding, Standings
from vramscope.model.device import Device, Process
from vramscope.model.finding import Finding
from vramscope.model.marks import MarkKind, Marks
from vramscope.model.rank_summary import StepRows
from vramscope.model.recording import Outcome
from vramscope.model.trace import Action, Trace
from vramscope.store.directory import MANIFEST
from vramscope.store.write.writer import Writer

MIB = 1 << 20
NOW_NS = 10**18
KEPT, SHORT = 0, 1


def begun(run, rank=0):
    """A run of this process: 100 MiB of weights, 10 MiB kept and 50 MiB used in each step of a second."""
    process = Process(rank, 2, socket.gethostname(), os.getpid(), total_steps=1000)
    device = Device(0, "simulated", "a card", 2 << 30)
    writer = Writer(run, source="simulated", process=process, devices=[device], started_ns=NOW_NS)
    writer.stacks([(0, "train", "/net/train.py", 7), (0, "step", "/net/train.py", 9)])
    write(writer, [(Action.ALLOC, 4096, 100 * MIB, 1, NOW_NS)], [])
    return writer


def write(writer, rows, marks):
    action, address, size, stack, time_ns = zip(*rows, strict=True)
    writer.append(
        Trace.of(action=action, address=address, size=size, block_size=size, stack_id=stack, time_ns=time_ns),
        0,
    )
    if marks:
        kind, at_ns, event = zip(*marks, strict=True)
        writer.append(Marks.of(kind=kind, time_ns=at_ns, event=event), 0)


def steps(writer, first, last):
    rows, marks = [], []
    for step in range(first, last):
        now = NOW_NS + (step + 1) * 10**9
        rows.append((Action.ALLOC, (1 << 40) + step * 10 * MIB, 10 * MIB, 2, now))
        rows += [(action, 1 << 30, 50 * MIB, 1, now) for action in (0, 1, 2)]
        marks.append((MarkKind.STEP, now, 1 + 4 * (step + 1)))
    write(writer, rows, marks)


@pytest.fixture
def folder(tmp_path):
    """Two runs: one of two ranks that has ended, and one that still runs after 40 steps."""
    for rank in (0, 1):
        writer = begun(tmp_path / "ended", rank)
        steps(writer, 0, 30)
        writer.close(*((Outcome.FINISHED,) if rank == 0 else (Outcome.FAILED, "ValueError: of the program")))
    steps(begun(tmp_path / "runs"), 0, 40)
    return tmp_path


def rows_of(folder):
    standings = Standings(folder)
    standings.look()
    return {(row.run, row.rank): row for row in standings.rows()}


def test_levels_peaks_steps_and_pace_are_those_counted_by_hand(folder):
    found = rows_of(folder)

    assert set(found) == {("ended", "0"), ("ended", "1"), ("runs", "0")}
    assert [(row.level_bytes, row.peak_bytes) for row in found.values() if row.run == "ended"] == [
        (400 * MIB, 450 * MIB)
    ] * 2
    live = found["runs", "0"]
    assert (live.level_bytes, live.peak_bytes, live.outcome) == (500 * MIB, 550 * MIB, Outcome.RUNNING)
    assert live.pace is not None
    assert live.pace.steps_per_s == pytest.approx(1.0)
    assert found["ended", "1"].error == "ValueError: of the program"


def test_forecast_and_finding_are_those_of_the_report(folder, capsys):
    assert main(["report", str(folder / "runs"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)

    row = rows_of(folder)["runs", "0"]

    (recording,) = report["recordings"]
    assert row.outlook.forecast is not None
    assert row.outlook.forecast.step == recording["forecast"]["step"]
    assert list(row.outlook.forecast.step_range) == recording["forecast"]["step_range"]
    assert row.finding is not None
    assert row.finding.claim == report["findings"][0]["claim"]
    assert row.peak_bytes == recording["peak"]["allocated_bytes"]


def test_once_prints_a_row_for_each_rank_and_an_unreadable_one_says_why(folder, capsys):
    broken = folder / "broken" / "rank0"
    broken.mkdir(parents=True)
    (broken / MANIFEST).write_text("no manifest \x1b[31m")

    assert main(["top", str(folder), "--once"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 4
    (line,) = (each for each in lines if "broken" in each)
    assert line.startswith("unreadable")
    assert str(broken) in line
    assert "\x1b" not in line


def test_a_run_that_is_deleted_is_no_row_any_more(folder):
    standings = Standings(folder)
    standings.look()
    shutil.rmtree(folder / "ended")

    standings.look()

    assert {row.run for row in standings.rows()} == {"runs"}


def test_a_folder_that_does_not_exist_is_one_sentence(tmp_path, capsys):
    assert main(["top", str(tmp_path / "nowhere")]) == 2
    assert main(["top", "s3://bucket/runs"]) == 2

    first, second = capsys.readouterr().err.splitlines()
    assert "nowhere: no folder" in first
    assert "vramscope ranks" in second


def test_the_newest_finding_is_the_one_that_was_not_there_before(folder):
    standings = Standings(folder)
    rank = folder / "runs" / "rank0"
    grave = Finding("leak", "warning", "claim 1", "a.py", 1)
    later = Finding("fragmentation", "warning", "claim 2")

    first = standings._newest(rank, "0", [grave, Finding("small_allocations", "info", "no matter")])
    second = standings._newest(rank, "0", [Finding("leak", "warning", "claim 1b", "a.py", 1), later])
    third = standings._newest(rank, "0", [grave])

    assert (first, second, third) == (grave, later, grave)


def many(n):
    return [
        RankStanding(
            run=f"a-run-with-a-long-name-{number:04}",
            rank="127.3",
            outcome=Outcome.RUNNING,
            started_ns=number,
            seen_ns=NOW_NS,
            level_bytes=1023 * MIB,
            peak_bytes=1023 * MIB + number,
            is_exact=False,
            share=0.997,
            finding=Finding("growing_batch", "warning", "each step is given more " * 20, "a.py", 3),
        )
        for number in range(n)
    ]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 12), (200, 50)])
def test_a_frame_fills_the_terminal_and_no_figure_is_cut(width, height):
    console = Console(width=width, height=height, file=io.StringIO(), force_terminal=False)

    console.print(frame(many(100), TopState(chosen=60), (width, height), NOW_NS))

    lines = console.file.getvalue().splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert all("≥ 1023 MiB" in line for line in lines[1:3])
    assert "quit" in lines[-1]


def test_keys_choose_sort_and_reverse():
    view, rows = TopState(), many(3)
    for key in ("down", "down", "down"):
        view.press(key, 3, 10)

    assert view.chosen == 2
    for key in ("right",) * 4:
        view.press(key, 3, 10)
    assert [row.peak_bytes - 1023 * MIB for row in ordered(rows, view)] == [2, 1, 0]
    view.press("r", 3, 10)
    assert [row.peak_bytes - 1023 * MIB for row in ordered(rows, view)] == [0, 1, 2]


def test_what_a_terminal_sends_for_keys_is_named():
    assert names_of("\x1b[A\x1bOBq\x1b[5~\x1b") == ["up", "down", "q", "page up", "\x1b"]


def test_the_pace_of_grouped_rows_is_that_of_their_steps():
    n, size = 30, 8
    first = np.arange(n) * size
    rows = StepRows.of(
        step=first,
        n_steps=np.full(n, size),
        start_ns=NOW_NS + first * 10**8,
        end_ns=NOW_NS + (first + size) * 10**8,
        allocated=first,
        reserved=first,
    )

    found = pace_of_rows(rows)

    assert found is not None
    assert found.step == n * size - 1
    assert found.steps_per_s == pytest.approx(10.0)


def test_a_terminal_shows_the_table_until_q_and_is_as_before(folder):
    mine, theirs = pty.openpty()
    termios.tcsetwinsize(mine, (24, 80)) if hasattr(termios, "tcsetwinsize") else None
    before = termios.tcgetattr(theirs)
    command = [sys.executable, "-m", "vramscope", "top", str(folder)]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=folder
    ) as process:
        try:
            shown = b""
            while b"550 MiB" not in shown and select.select([mine], [], [], 60)[0]:
                shown += os.read(mine, 65536)
            os.write(mine, b"q")
            while process.poll() is None and select.select([mine], [], [], 0.1)[0] is not None:
                if select.select([mine], [], [], 0)[0]:
                    os.read(mine, 65536)
        finally:
            process.kill()

    assert b"550 MiB" in shown
    assert process.returncode == 0
    assert termios.tcgetattr(theirs) == before
    os.close(mine)
    os.close(theirs)


def test_it_needs_neither_torch_nor_the_dashboard(folder):
    code = (
        "import sys; sys.modules.update(torch=None, dash=None, pandas=None); "
        f"from vramscope.cli import main; sys.exit(main(['top', {str(folder)!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=Path(folder)
    )

    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1 + 3
