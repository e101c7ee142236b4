"""A restarted rank joins its run, beside its first attempt; another job never does."""

import os
import socket

import pytest

import vramscope
from vramscope.fleet import compared_run
from vramscope.model.device import Process
from vramscope.model.recording import Outcome
from vramscope.recorder.run_directory import is_of_another_job
from vramscope.store.directory import attempts_of, rank_name, ranks_of

RECORD = """
import sys, torch, vramscope
with vramscope.record(sys.argv[1], device="simulated", quiet=True):
    torch.ones(1000)
"""


def process(rank, restarts=0, job="job-1"):
    return Process(rank, 2, socket.gethostname(), os.getpid(), restarts=restarts, job=job)


def test_the_last_attempt_of_a_restarted_rank_counts(new_writer, run_dir):
    new_writer(process=process(0)).close(Outcome.FAILED, "RuntimeError: lost")
    new_writer(process=process(1)).close(Outcome.FINISHED)
    new_writer(process=process(0, restarts=1)).close(Outcome.FINISHED)
    found = compared_run(run_dir)

    assert [path.name for path in ranks_of(run_dir)] == ["rank0-restart1", "rank1"]
    assert attempts_of(run_dir) == {0: 2, 1: 1}
    assert found.fleet.restarts == {0: 1}
    assert found.fleet.ended == ()
    assert vramscope.load(run_dir).outcome is Outcome.FINISHED
    assert vramscope.load(run_dir / "rank0").outcome is Outcome.FAILED


def test_attempts_are_ordered_by_number():
    assert [rank_name(3, n) for n in (0, 1, 10)] == ["rank3", "rank3-restart1", "rank3-restart10"]


@pytest.mark.parametrize(
    ("known", "own", "is_other"),
    [
        ("812.0", "812.0", False),
        ("812.0", "813.0", True),
        ("", "813.0", False),
        ("812.0", "", False),
        ("7-1.00@node0", "8-2.00@node0", True),
        # Each host has a launcher of its own: nothing says that these are two jobs.
        ("7-1.00@node0", "8-2.00@node1", False),
    ],
)
def test_a_run_is_shared_within_a_job_alone(new_writer, run_dir, known, own, is_other):
    new_writer(process=process(0, job=known)).close(Outcome.FINISHED)

    assert is_of_another_job(run_dir, own) is is_other


@pytest.mark.slow
def test_a_second_job_of_more_ranks_leaves_the_run_of_the_first_alone(tmp_path, plain_forks):
    script = tmp_path / "record.py"
    script.write_text(RECORD)
    for job, n_ranks in (("first", 1), ("second", 2)):
        for rank in reversed(range(n_ranks)):
            environ = {"RANK": str(rank), "WORLD_SIZE": str(n_ranks), "LOCAL_RANK": str(rank)}
            environ |= {"TORCHELASTIC_RUN_ID": job, "TORCHELASTIC_RESTART_COUNT": "0"}
            done = plain_forks.run(script, tmp_path / "run", cwd=tmp_path, variables=environ)
            assert done.returncode == 0, done.stderr

    assert [path.name for path in ranks_of(tmp_path / "run")] == ["rank0"]
    assert [path.name for path in ranks_of(tmp_path / "run-2")] == ["rank0", "rank1"]
