"""Whatever ends or hurts a training: it behaves as without us, and what was recorded by then is true."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from vramscope.loading import load
from vramscope.model.marks import Phase
from vramscope.model.recording import Outcome
from vramscope.model.trace import Action

pytestmark = [pytest.mark.standin, pytest.mark.xdist_group("cuda-deaths")]

SCRIPT = Path(__file__).parent / "scripts" / "deaths.py"
QUANTITIES = ("allocated", "active", "reserved", "requested")
WORK = {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}


@dataclass(frozen=True)
class Ended:
    """What is left of a process."""

    status: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Death:
    """The same death without us, and with us."""

    plain: Ended
    recorded: Ended
    directory: Path

    @property
    def lines(self):
        return [json.loads(line) for line in self.recorded.stdout.splitlines() if line.startswith("{")]

    @property
    def run(self):
        return load(self.directory)


@pytest.fixture(scope="module")
def death(python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("deaths")
    done = python(SCRIPT, folder, cwd=folder)
    assert done.returncode == 0, done.stderr

    def ended(name):
        status, *said = ((folder / f"{name}.{what}").read_text() for what in ("status", "stdout", "stderr"))
        return Ended(int(status), *said)

    return lambda kind: Death(ended(f"{kind}-plain"), ended(f"{kind}-recorded"), folder / kind)


KINDS = {
    "survives": 0,
    "oom_uncaught": 1,
    "killed_in_backward": -9,
    "exits_at_once": 7,
    "disk_full": 0,
}

UNTOLD = ("killed_in_backward", "exits_at_once")


@pytest.mark.parametrize(("kind", "status"), KINDS.items())
def test_the_program_does_and_says_what_it_does_without_us(death, kind, status):
    found = death(kind)

    assert found.plain.status == status, found.plain.stderr
    assert found.recorded.status == status, found.recorded.stderr
    assert found.recorded.stdout == found.plain.stdout
    assert len(found.lines) >= 5


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_says_on_stderr_is_the_same_but_for_at_most_one_warning_of_ours(death, kind):
    found = death(kind)
    ours = [
        line for line in found.recorded.stderr.splitlines() if "vramscope" in line and '  File "' not in line
    ]
    n_expected = 1 if kind == "disk_full" else 0

    assert len([line for line in ours if "Warning" in line]) == n_expected, ours
    assert len(ours) <= 2 * n_expected, ours
    assert errors(found.recorded.stderr) == errors(found.plain.stderr)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_recorded_is_true_at_every_step_that_is_in_it(death, kind):
    found = death(kind)
    first, *steps = found.lines
    (recording,) = found.run.recordings
    totals = recording.timeline()
    rows = np.stack([getattr(totals, f"{quantity}_bytes") for quantity in QUANTITIES], axis=1)
    actions = (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)
    seen = np.stack([np.cumsum(recording.trace.action == action) for action in actions], axis=1)

    n_checked = 0
    for step in steps:
        at = np.flatnonzero((seen == np.array(step["counts"]) - first["counts"]).all(axis=1)) + 1
        n_checked += len(at) > 0
        assert not len(at) or step["bytes"] in rows[at].tolist()
    # A full disk keeps what was there before it was full; every other run keeps what each step says.
    assert n_checked >= (0 if kind == "disk_full" else 4)


def test_who_survives_is_recorded_to_the_end(death):
    found = death("survives")
    (recording,) = found.run.recordings
    totals = recording.timeline()

    assert found.run.outcome is Outcome.FINISHED
    assert [int(getattr(totals, f"{name}_bytes")[-1]) for name in QUANTITIES] == found.lines[-1]["bytes"]
    for step in (0, len(recording.steps) - 1):
        assert set(recording.phases.phase[recording.phases.step == step]) >= WORK


def test_an_error_that_leaves_the_block_is_how_the_run_ended(death):
    run = death("oom_uncaught").run

    assert run.outcome is Outcome.FAILED
    assert "out of memory" in run.error


@pytest.mark.parametrize("kind", UNTOLD)
def test_a_process_that_never_closed_its_run_died(death, kind):
    assert death(kind).run.outcome is Outcome.DIED


@pytest.mark.parametrize(("kind", "step"), [("survives", 1), ("oom_uncaught", 3)])
def test_what_could_not_be_had_is_in_the_trace_with_what_was_there_then(death, kind, step):
    found = death(kind)
    (recording,) = found.run.recordings
    (at,) = np.flatnonzero(recording.trace.action == Action.OOM)
    before = found.lines[1 + step]
    totals = recording.timeline()

    assert recording.trace.size[at] == 1 << 42
    # Before it fails, the allocator releases what is free: from torch 2.15 on cuBLAS's workspace is.
    while recording.trace.action[at - 1] == Action.SEGMENT_FREE:
        at -= 1
    assert before["step"] == step
    assert [int(getattr(totals, f"{name}_bytes")[at]) for name in QUANTITIES] == before["bytes"]
    assert len(recording.lifetimes().rows_at(int(at))) == before["live"]


def test_a_disk_that_was_full_is_reported_in_a_warning(death):
    found = death("disk_full")

    assert "vramscope stopped recording, training goes on" in found.recorded.stderr
    assert len(found.run.recordings) == 1


def errors(text):
    """The names of the exceptions that Python reported."""
    return [line.split(":")[0] for line in text.splitlines() if line.split(":")[0].endswith("Error")]
