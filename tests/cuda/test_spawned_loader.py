"""A DataLoader that spawns its processes while we record: nobody notices, and the trace is the training's."""

import json
from pathlib import Path

import numpy as np
import pytest
from moments import counted, rows_of

from vramscope.loading import load
from vramscope.model.recording import Outcome

pytestmark = [pytest.mark.standin, pytest.mark.xdist_group("cuda-deaths")]

SCRIPT = Path(__file__).parent / "scripts" / "spawned_loader.py"


@pytest.fixture(scope="module")
def trained(python, tmp_path_factory):
    """What torch computed and reported without us and with us, what was written on stderr, and the run."""
    folder = tmp_path_factory.mktemp("spawned")
    done = python(SCRIPT, folder, cwd=folder)
    assert done.returncode == 0, done.stderr
    plain, recorded = map(json.loads, done.stdout.splitlines())
    return plain, recorded, done.stderr, load(folder / "run")


def test_training_is_as_without_us_and_without_processes(trained):
    plain, recorded, stderr, _ = trained

    assert len(recorded["losses"]) == 6
    assert recorded["losses"] == plain["losses"]
    assert recorded["random"] == plain["random"]
    assert "vramscope" not in stderr


def test_the_spawned_processes_know_nothing_of_us(trained):
    _, recorded, _, run = trained

    assert recorded["known"] == [False] * 24
    assert len(run.recordings) == 1
    assert run.outcome is Outcome.FINISHED


def test_the_trace_is_the_trainings_event_by_event(trained):
    _, recorded, _, run = trained
    (recording,) = run.recordings
    said = np.array(recorded["last"]["counts"]) - recorded["first"]["counts"]

    assert counted(recording.trace)[-1].tolist() == said.tolist()
    assert rows_of(recording)[0].tolist() == recorded["first"]["bytes"]
    assert rows_of(recording)[-1].tolist() == recorded["last"]["bytes"]
    assert not [note for note in recording.notes if note.code == "gap"]


def test_every_step_peaks_where_torch_says(trained):
    _, recorded, _, run = trained
    (recording,) = run.recordings

    assert recording.step_peaks().per_step.allocated_bytes.tolist() == recorded["peaks"]
