"""A run that outgrows the cap of its trace: its figures are torch's, before the cut and after it."""

import json
from pathlib import Path

import numpy as np
import pytest
from layouts import expected, layout

from vramscope.allocator.state_index import StateIndex
from vramscope.loading import load

pytestmark = [pytest.mark.standin, pytest.mark.xdist_group("cuda-deaths")]

SCRIPT = Path(__file__).parent / "scripts" / "endless.py"
QUANTITIES = ("allocated", "active", "reserved", "requested")
CAP = 200_000


@pytest.fixture(scope="module")
def endless(python, tmp_path_factory):
    """torch's peaks per step, what it reported at marks, the recording, and the directory."""
    folder = tmp_path_factory.mktemp("endless")
    done = python(SCRIPT, folder, cwd=folder)
    assert done.returncode == 0, done.stderr
    peaks, *said = map(json.loads, done.stdout.splitlines())
    (recording,) = load(folder / "run").recordings
    return peaks, said, recording, folder / "run"


def test_the_peak_of_every_step_is_max_memory_allocated_of_a_run_that_resets_it(endless):
    peaks, _, recording, _ = endless
    found = recording.step_peaks()

    assert len(found.past_per_step) > len(found.per_step) > 0
    assert [*found.past_per_step.allocated_bytes.tolist(), *found.per_step.allocated_bytes.tolist()] == peaks


def test_quantities_segments_and_blocks_after_the_cut_are_what_torch_says(endless):
    _, said, recording, _ = endless
    totals, index = recording.timeline(), StateIndex(recording.trace, recording.initial)
    marks, n_known = recording.marks, 0

    for point in said:
        for row in np.flatnonzero(marks.name == marks.names.index(point["name"])):
            instant, n_known = int(marks.event[row]), n_known + 1
            assert [int(getattr(totals, f"{quantity}_bytes")[instant]) for quantity in QUANTITIES] == point[
                "bytes"
            ]
            assert layout(index.at(instant), recording.pools) == expected(point)
    assert n_known == len(said)


def test_the_directory_is_below_the_cap(endless):
    _, _, recording, directory = endless

    assert sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) <= CAP
    assert recording.past.n_events > len(recording.trace)


def test_parameters_are_known_after_the_cut(endless):
    _, _, recording, _ = endless
    known = recording.categories(instant=0)

    # Four blocks of two layers, and two moments of each parameter.
    n_bytes = 4 * 4 * (64 * 256 + 256 + 256 * 64 + 64)
    assert known.totals["parameter"] >= n_bytes
    assert known.totals["optimizer_state"] >= 2 * n_bytes
