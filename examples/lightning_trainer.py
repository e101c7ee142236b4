"""A Trainer of Lightning: the callback records fit, and every logger has the peaks."""

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger

from vramscope.integrations.lightning import VramscopeCallback


class Net(LightningModule):
    """Two layers."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)
        )

    def training_step(self, batch, _):
        loss = self.net(batch).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


torch.manual_seed(0)
callback = VramscopeCallback("traces/lightning", device="simulated", quiet=True)
trainer = Trainer(
    accelerator="cpu",
    max_epochs=1,
    log_every_n_steps=4,
    logger=CSVLogger("logs"),
    callbacks=[callback],
    enable_progress_bar=False,
    enable_model_summary=False,
    enable_checkpointing=False,
)
trainer.fit(Net(), torch.utils.data.DataLoader([torch.randn(64, 512) for _ in range(12)], batch_size=None))

(recording,) = callback.recording.recorder.load().recordings
print(f"{trainer.global_step} steps of the trainer, {len(recording.steps)} in the recording")
