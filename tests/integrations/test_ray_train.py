"""A trainer of Ray Train with our reporter: workers are ranks of one run, and reports have the peaks."""

import logging

import pytest

torch = pytest.importorskip("torch")
ray = pytest.importorskip("ray", reason="needs Ray: make test-integrations")
pytest.importorskip("ray.train.torch", reason="needs Ray Train: make test-integrations")

from ray.train import Checkpoint, RunConfig, ScalingConfig  # noqa: E402
from ray.train.torch import TorchTrainer  # noqa: E402

import vramscope  # noqa: E402
from vramscope.errors import UsageError  # noqa: E402
from vramscope.integrations.ray_train import VramscopeReporter  # noqa: E402
from vramscope.model.recording import Outcome  # noqa: E402

pytestmark = pytest.mark.slow
MIB = 1 << 20


@pytest.fixture(scope="module")
def fit(tmp_path_factory):
    """``fit(function)``: the result of a training of two workers on this machine."""
    folder = tmp_path_factory.mktemp("ray")
    ray.init(
        num_cpus=3,  # old versions take one for the trainer, beside the workers'
        object_store_memory=80 * MIB,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )

    def run(function):
        trainer = TorchTrainer(
            function,
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=str(folder)),
        )
        return trainer.fit()

    yield run
    ray.shutdown()


def test_each_worker_is_a_rank_of_one_run_and_reports_have_the_peaks_since_the_last(fit, tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "weights").touch()

    def train():
        net = torch.nn.Linear(128, 128 * (1 + ray.train.get_context().get_world_rank()))
        optimizer = torch.optim.Adam(net.parameters())
        with VramscopeReporter(tmp_path / "run", device="simulated", quiet=True) as reporter:
            for size in (4, 60, 8, 100, 30, 2):
                net(torch.ones(16 * size, 128)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                reporter.step()
                if size in (100, 2):
                    # Ray keeps the metrics of a report with a checkpoint.
                    reporter.report({"size": size}, checkpoint=Checkpoint.from_directory(kept))

    metrics = fit(train).metrics
    recordings = vramscope.load(tmp_path / "run").recordings
    steps = [recording.summary().steps for recording in recordings]

    assert [(each.process.rank, each.process.world_size) for each in recordings] == [(0, 2), (1, 2)]
    assert [len(each) for each in steps] == [6, 6]
    assert metrics["vram/peak_allocated_bytes"] == max(step.allocated_bytes for step in steps[0][4:])
    assert metrics["size"] == 2


def test_a_worker_that_fails_is_recorded_as_failed(fit, tmp_path):
    def train():
        with VramscopeReporter(tmp_path / "run", device="simulated", quiet=True) as reporter:
            torch.nn.Linear(8, 8)
            reporter.step()
            raise RuntimeError("out of coffee")

    with pytest.raises(Exception, match=r"failed|out of coffee") as raised:
        fit(train)
    run = vramscope.load(tmp_path / "run")

    # Old versions raise an error of their own from it.
    assert "out of coffee" in f"{raised.value} {raised.value.__cause__}"
    assert run.outcome is Outcome.FAILED


def test_a_relative_path_is_refused():
    with pytest.raises(UsageError, match="give an absolute path"):
        VramscopeReporter("traces/run")
