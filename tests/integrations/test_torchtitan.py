"""Metrics of torchtitan that record; they are asked as its trainer asks them, but without a GPU."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
metrics = pytest.importorskip("torchtitan.components.metrics", reason="needs torchtitan, Python 3.11")

import vramscope  # noqa: E402
from vramscope.integrations.torchtitan import VramscopeMetrics  # noqa: E402
from vramscope.model.recording import Outcome  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_tensors_only")]
SIZES = (4, 60, 8, 100, 30, 2, 90, 16)


@pytest.fixture
def processor(tmp_path, monkeypatch):
    """The metrics that torchtitan builds from its configuration, and the rows of their log."""
    # torchtitan reads the counters of a GPU beside ours.
    counters = metrics.DeviceMemStats(*[0] * 6)
    monitor = SimpleNamespace(
        device_name="H100", get_peak_stats=lambda: counters, reset_peak_stats=lambda: None
    )
    monkeypatch.setattr(metrics, "build_device_memory_monitor", lambda: monitor)
    monkeypatch.setenv("VRAMSCOPE_DEVICE", "simulated")
    monkeypatch.setenv("VRAMSCOPE_QUIET", "1")
    config = VramscopeMetrics.Config(trace_directory=str(tmp_path / "run"), log_freq=2)
    built = config.build(
        parallel_dims=SimpleNamespace(non_data_parallel_size=1), dump_folder=str(tmp_path / "out")
    )
    built.num_flops_per_token = 1
    rows = {}
    built.logger = SimpleNamespace(log=lambda found, step: rows.update({step: found}), close=lambda: None)
    return SimpleNamespace(metrics=built, rows=rows, directory=tmp_path / "run")


def train(processor, fails_at=None):
    """What torchtitan's trainer does to its metrics in each step, and as it closes."""
    net = torch.nn.Linear(128, 128)
    optimizer = torch.optim.Adam(net.parameters())
    try:
        for step, size in enumerate(SIZES, 1):
            should_log = processor.should_log(step)
            loss = net(torch.ones(16 * size, 128)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            processor.data_loading_times.append(0.0)
            if step == fails_at:
                raise RuntimeError("out of coffee")
            if should_log:
                processor.log(step, loss.item(), loss.item(), 1.0, extra_metrics={"lr": 0.1})
    except RuntimeError:
        processor.close()
    else:
        processor.close()


def test_its_steps_are_the_trainers_and_its_log_has_the_peaks_beside_torchtitans_own(processor):
    train(processor.metrics)
    run = vramscope.load(processor.directory)
    steps = run.recordings[0].summary().steps
    peaks = [row["vram/peak_allocated_bytes"] for row in processor.rows.values()]

    assert len(steps) == len(SIZES)
    assert list(processor.rows) == [1, 2, 4, 6, 8]
    assert peaks[1:] == [max(step.allocated_bytes for step in steps[at - 2 : at]) for at in (2, 4, 6, 8)]
    assert all(row["lr"] == 0.1 and "loss_metrics/global_avg_loss" in row for row in processor.rows.values())
    assert run.outcome is Outcome.FINISHED


def test_a_training_that_fails_is_recorded_as_failed(processor):
    train(processor.metrics, fails_at=3)

    assert vramscope.load(processor.directory).outcome is Outcome.FAILED
