"""A Trainer of Lightning with our callback: its steps, its logs, its losses."""

import csv
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
lightning = pytest.importorskip("lightning", reason="needs lightning: make test-integrations")

from lightning.pytorch.loggers import CSVLogger  # noqa: E402

from vramscope.integrations.lightning import VramscopeCallback  # noqa: E402
from vramscope.model.recording import Outcome  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_tensors_only")]
CALLBACK = VramscopeCallback
SIZES = [2, 40, 8, 3, 60, 5, 16, 90, 4, 30, 7, 50, 12, 6, 70, 9]


class Net(lightning.pytorch.LightningModule):
    """A small net, whose batches differ in size."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(3)])
        self.seen = []

    def training_step(self, batch, _):
        loss = self.net(batch).square().mean()
        self.seen.append(loss.item())
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        self.log("val_loss", self.net(batch).square().mean(), batch_size=1)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


def batches(n=None):
    generator = torch.Generator().manual_seed(0)
    kept = [torch.randn(16 * size, 128, generator=generator) for size in SIZES[:n]]
    return torch.utils.data.DataLoader(kept, batch_size=None)


def fitted(folder, callbacks, **options):
    torch.manual_seed(0)
    net = Net()
    trainer = lightning.pytorch.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=CSVLogger(folder / "logs"),
        callbacks=callbacks,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **({"log_every_n_steps": 2, "enable_checkpointing": False} | options),
    )
    trainer.fit(net, batches(), batches(2))
    return trainer, net


def rows_of(trainer):
    with (Path(trainer.logger.log_dir) / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("accumulated", [1, 2])
def test_its_steps_are_the_trainers_and_its_logs_have_the_peaks_of_the_report(
    tmp_path, callback, accumulated, recording_of
):
    trainer, _ = fitted(tmp_path, [callback], accumulate_grad_batches=accumulated, num_sanity_val_steps=0)
    steps = recording_of(callback).summary().steps
    rows = [row for row in rows_of(trainer) if row.get("vram/peak_allocated_bytes")]

    assert len(steps) == trainer.global_step == len(SIZES) // accumulated
    expected = [
        max(step.allocated_bytes for step in steps[at - 2 : at]) for at in range(2, len(steps) + 1, 2)
    ]
    assert [int(float(row["vram/peak_allocated_bytes"])) for row in rows] == expected
    assert len(set(expected)) > 2
    of_the_trainer = [row["step"] for row in rows_of(trainer) if row.get("loss")]
    assert [row["step"] for row in rows] == of_the_trainer


def test_without_the_callback_every_loss_is_the_same_bit_for_bit(tmp_path, callback):
    _, recorded = fitted(tmp_path, [callback])
    _, plain = fitted(tmp_path, [])

    assert recorded.seen == plain.seen
    assert len(plain.seen) == len(SIZES)


def test_validation_and_the_sanity_check_are_phases(tmp_path, callback, recording_of):
    fitted(tmp_path, [callback], val_check_interval=8, enable_checkpointing=True)
    recording = recording_of(callback)
    names = [recording.phases.names[name] for name in recording.phases.name.tolist()]
    marks = [recording.marks.names[name] for name in recording.marks.name.tolist()]

    assert names.count("eval") == 3
    assert "save" in marks
    assert len(recording.steps) == len(SIZES)


def test_a_training_that_fails_is_recorded_as_failed(tmp_path, callback):
    class Failing(lightning.pytorch.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):  # noqa: ARG002
            if batch_idx == 3:
                raise ValueError("the batch is bad")

    with pytest.raises(ValueError, match="the batch is bad"):
        fitted(tmp_path, [callback, Failing()])
    run = callback.recording.recorder.load()

    assert run.outcome == Outcome.FAILED
    assert run.error == "ValueError: the batch is bad"
    assert len(run.recordings[0].steps) == 3
