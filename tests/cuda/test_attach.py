"""A process is attached to and detached from 20 times: its losses stay, and each late start is exact."""

import json
from pathlib import Path

import numpy as np
import pytest

from vramscope.analysis.timeline import timeline
from vramscope.loading import load
from vramscope.model.marks import MarkKind

SCRIPT = Path(__file__).parent / "scripts" / "attached.py"
TIMES = 20


@pytest.mark.parametrize(
    "device",
    [
        pytest.param("simulated", marks=pytest.mark.exhaustive),
        pytest.param("cuda", marks=pytest.mark.standin),
    ],
)
def test_twenty_attachments_change_no_loss_and_each_is_exact_from_its_first_event(device, request, tmp_path):
    runner = request.getfixturevalue("forks" if device == "cuda" else "plain_forks")
    root = {"PYTHONPATH": Path(__file__).parents[2]}
    done = runner.run(SCRIPT, tmp_path / "run", device, TIMES, cwd=tmp_path, variables=root)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    (recording,) = load(tmp_path / "run").recordings
    marks = recording.marks
    kinds = [int(np.count_nonzero(marks.kind == kind)) for kind in (MarkKind.ENTER, MarkKind.EXIT)]
    said = marks.rows(marks.kind == MarkKind.MARK)

    assert found["attached"] == found["plain"]
    assert found["answers"] == [f"recording to {tmp_path}/run", f"recorded to {tmp_path}/run"] * TIMES
    assert found["waited"] == [f"recording to {tmp_path}/run-w", f"recorded to {tmp_path}/run-w"]
    assert kinds == [TIMES, TIMES]
    assert len(said) >= TIMES
    if device == "cuda":
        truth = [int(said.names[name]) for name in said.name]
        assert timeline(recording).allocated_bytes[said.event].tolist() == truth
