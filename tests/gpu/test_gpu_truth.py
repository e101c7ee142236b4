"""The workloads of ``tests/cuda`` on a real card: the same truth, reported by the same torch, with a real
driver.

They need no installation but torch's: the checkout on PYTHONPATH is enough.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "tests" / "cuda" / "scripts"
sys.path.append(str(SCRIPTS))

from catalogue import GROUP_OF, GROUPS  # noqa: E402
from layouts import expected, layout  # noqa: E402
from moments import moments, phases_of, rows_of  # noqa: E402

from vramscope.allocator.state_index import StateIndex  # noqa: E402
from vramscope.loading import load  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("gpu")]

MIB = 1 << 20


@pytest.fixture(scope="session")
def truth_of(tmp_path_factory):
    """``truth_of("gan")``: what torch reported without us and with us, and what we recorded."""
    folder = Path(os.environ.get("VRAMSCOPE_GPU_OUT", "") or tmp_path_factory.mktemp("gpu")) / "workloads"
    _need_a_gpu()
    folder.mkdir(parents=True)
    paths = [*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)]
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "run_workloads.py"), str(folder)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr

    def truth(name):
        for mode in ("plain", "recorded"):
            file = folder / f"{GROUP_OF[name]}-{mode}.status"
            assert file.read_text() == "0", file.with_suffix(".stderr").read_text()
        plain, recorded = (
            json.loads((folder / f"{name}.{mode}.json").read_text()) for mode in ("plain", "recorded")
        )
        return plain, recorded, load(folder / name).recordings[0]

    return truth


def _need_a_gpu():
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU here (torch.cuda.is_available() is false)")


@pytest.mark.parametrize("name", GROUP_OF)
def test_the_four_quantities_equal_memory_stats_wherever_it_was_asked(truth_of, name):
    _, recorded, recording = truth_of(name)
    rows = rows_of(recording)
    wrong = [
        (point["where"], point["bytes"], rows[found].tolist())
        for point, found in moments(recording, recorded, recorded["points"])
        if point["bytes"] not in rows[found].tolist()
    ]

    assert not wrong, f"{len(wrong)} of {len(recorded['points'])}: {wrong[:3]}"
    assert len(recorded["points"]) >= 200


@pytest.mark.parametrize("name", GROUP_OF)
def test_peaks_of_steps_and_phases_are_those_of_a_run_that_resets_them(truth_of, name):
    plain, _, recording = truth_of(name)

    assert recording.step_peaks().per_step.allocated_bytes.tolist() == plain["steps"]
    assert phases_of(recording) == plain["phases"]


@pytest.mark.parametrize("name", GROUP_OF)
def test_segments_and_blocks_equal_a_snapshot_taken_there(truth_of, name):
    _, recorded, recording = truth_of(name)
    index = StateIndex(recording.trace, recording.initial)

    for said, found in moments(recording, recorded, recorded["snapshots"]):
        assert expected(said) in [layout(index.at(k), recording.pools) for k in found]


@pytest.mark.parametrize("name", GROUP_OF)
def test_training_is_the_same_with_us(truth_of, name):
    plain, recorded, _ = truth_of(name)
    # How long a block waits for another stream is the device's affair.
    known = slice(None) if name != "streams" else slice(0, 1)

    assert recorded["losses"] == plain["losses"]
    assert recorded["random_states"] == plain["random_states"]
    assert recorded["greatest"] == plain["greatest"]
    assert [point["bytes"][known] for point in recorded["points"]] == [
        point["bytes"][known] for point in plain["points"]
    ]
    assert recorded["guarded"]["ours"] == []


@pytest.mark.parametrize("name", [group.names[0] for group in GROUPS.values()])
def test_the_parts_of_the_device_add_up_to_what_the_driver_counts(truth_of, name):
    _, _, recording = truth_of(name)
    parts = recording.waterfall()

    assert (parts.used_bytes >= 0).any()
    for row in np.flatnonzero(parts.used_bytes >= 0).tolist():
        bars = {bar.name: bar.n_bytes or 0 for bar in parts.bars(row)}
        total, used = sum(bars.values()) - bars["free"] - bars["driver"], int(parts.used_bytes[row])
        # Other programs on the card may allocate between two questions to the driver.
        assert abs(total - used) <= max(used // 100, 16 * MIB) + int(parts.drift_bytes[row])
