"""A trace that was never closed is running as long as its process is, and no longer."""

import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vramscope.model.device import Process
from vramscope.model.recording import Outcome
from vramscope.store import manifest
from vramscope.store.liveness import Incarnation, current_incarnation, is_alive
from vramscope.store.read.reader import Reader
from vramscope.store.write.writer import Writer

HOST = socket.gethostname()

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


def test_this_process_is_alive() -> None:
    assert is_alive(HOST, os.getpid(), current_incarnation()) is True


def test_a_pid_that_was_given_to_another_process_is_not_ours() -> None:
    assert (
        is_alive(HOST, os.getpid(), replace(current_incarnation(), started=current_incarnation().started - 1))
        is False
    )


def test_a_process_that_ended_is_dead_even_before_its_parent_asks(started: Any) -> None:
    with started([sys.executable, "-c", ""]) as process:
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.005)

        assert is_alive(HOST, process.pid, current_incarnation()) is False
    assert is_alive(HOST, process.pid, current_incarnation()) is False


@pytest.mark.parametrize("pid", [0, -1, 2**62])
def test_a_pid_that_cannot_be_is_dead(pid: int) -> None:
    assert is_alive(HOST, pid, current_incarnation()) is False


def test_a_boot_ago_is_dead_on_this_machine_and_unknown_elsewhere() -> None:
    before = replace(current_incarnation(), boot="another")

    assert is_alive(HOST, os.getpid(), before) is False
    assert is_alive("elsewhere", os.getpid(), before) is None


def test_another_container_cannot_be_asked() -> None:
    assert is_alive(HOST, os.getpid(), replace(current_incarnation(), namespace="pid:[1]")) is None


def test_without_proc_the_pid_and_the_host_must_do() -> None:
    unknown = current_incarnation(Path("/nowhere"))

    assert unknown == Incarnation()
    for written in (Incarnation(), current_incarnation()):
        assert is_alive(HOST, os.getpid(), written, unknown) is True
        assert is_alive("elsewhere", os.getpid(), written, unknown) is None


def last_written(rank_dir: Path, seconds_ago: float) -> None:
    when = time.time() - seconds_ago
    for path in rank_dir.iterdir():
        os.utime(path, (when, when))


@pytest.mark.parametrize(
    ("seconds_ago", "outcome"),
    [(1, Outcome.RUNNING), (-5, Outcome.RUNNING), (60, Outcome.DIED), (-3600, Outcome.DIED)],
)
def test_where_the_process_cannot_be_asked_growth_decides(
    run_dir: Path, new_writer: Callable[..., Writer], seconds_ago: float, outcome: Outcome
) -> None:
    writer = new_writer(process=Process(host="elsewhere", pid=1))
    path = writer.path / "manifest.json"
    manifest.write(path, replace(manifest.read(path), incarnation=Incarnation("elsewhere")), durable=False)
    last_written(writer.path, seconds_ago)

    assert Reader(run_dir).run.outcome is outcome


def test_a_closed_trace_has_the_outcome_it_says(run_dir: Path, new_writer: Callable[..., Writer]) -> None:
    new_writer(process=Process(host=HOST, pid=1)).close(Outcome.FAILED)

    assert Reader(run_dir).run.outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("outcomes", "of_run"),
    [
        ("finished finished", Outcome.FINISHED),
        ("finished failed", Outcome.FAILED),
        ("running failed", Outcome.RUNNING),
        ("died failed", Outcome.FAILED),
        ("died finished", Outcome.DIED),
    ],
)
def test_a_run_is_as_its_worst_rank(
    run_dir: Path, new_writer: Callable[..., Writer], outcomes: str, of_run: Outcome
) -> None:
    for rank, outcome in enumerate(outcomes.split()):
        dead = {"process": Process(rank, 2, HOST, 2**40)} if outcome == "died" else {}
        writer = new_writer(rank=rank, world_size=2, **dead)
        if outcome in ("finished", "failed"):
            writer.close(Outcome(outcome), "no" if outcome == "failed" else "")
    run = Reader(run_dir).run

    assert run.outcome is of_run
    assert run.error == ("rank 1: no" if "failed" in outcomes else "")
