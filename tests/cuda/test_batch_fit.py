"""On the genuine allocator too a batch twice as large as any seen needs what small ones foretold."""

from pathlib import Path

import pytest

from vramscope.load import load

pytestmark = pytest.mark.standin

HERE = Path(__file__).parent
MODELS = ("mlp", "deep", "convolutions", "transformer", "checkpointed")


@pytest.fixture(scope="module")
def folder(python, tmp_path_factory):
    """All models, trained once."""
    folder = tmp_path_factory.mktemp("batches")
    done = python(HERE / "scripts" / "batches.py", folder, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_the_peak_of_a_large_batch_is_foreseen(folder, name):
    (small,) = load(folder / f"{name}-small").recordings
    (large,) = load(folder / f"{name}-large").recordings

    fit = small.batch_fit(sizes=[[64, 64, 128, 128, 192, 192]])

    truth = int(large.step_peaks().per_step.allocated[2:].max())
    estimate = fit.at(384)
    assert fit.basis == "replay"
    assert estimate.likely == pytest.approx(truth, rel=0.01)
    assert estimate.low <= truth <= estimate.high
