"""A trainer in the manner of Lightning, with a callback that keeps what every batch gave."""

import torch
from torch import nn
from torch.nn import functional


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256))
        self.head = nn.Linear(256, 512)

    def forward(self, x):
        return self.head(self.encoder(x))  # LEAK: kept_output

    def training_step(self, batch):
        inputs, targets = batch
        logits = self(inputs)
        return {"loss": functional.cross_entropy(logits, targets), "logits": logits}

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


class Callback:
    def on_batch_end(self, trainer, outputs, index):
        pass


class Predictions(Callback):
    def __init__(self):
        self.collected = []  # HOLDER: collected

    def on_batch_end(self, trainer, outputs, index):  # noqa: ARG002
        self.collected.append(outputs)  # KEPT


class Trainer:
    def __init__(self, max_steps, device, callbacks):
        self.max_steps, self.device, self.callbacks = max_steps, device, callbacks

    def fit(self, model, loader):
        model.to(self.device)
        optimizer = model.configure_optimizers()
        for index, batch in zip(range(self.max_steps), loader, strict=False):
            outputs = model.training_step([part.to(self.device) for part in batch])
            optimizer.zero_grad(set_to_none=True)
            outputs["loss"].backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            for callback in self.callbacks:
                callback.on_batch_end(self, outputs, index)


def batches():
    while True:
        yield torch.randn(128, 64), torch.randint(0, 512, (128,))


def main(steps, device):
    Trainer(steps, device, [Predictions()]).fit(Classifier(), batches())
