"""Metrics in the manner of torchmetrics, with list states, that nobody resets."""

import torch
from torch import nn


class Metric(nn.Module):
    def __init__(self):
        super().__init__()
        self._defaults = {}

    def add_state(self, name, default):
        self._defaults[name] = default
        setattr(self, name, list(default))

    def reset(self):
        for name, default in self._defaults.items():
            setattr(self, name, list(default))

    def forward(self, *arguments):
        self.update(*arguments)


class AveragePrecision(Metric):
    def __init__(self):
        super().__init__()
        self.add_state("preds", [])  # HOLDER: preds
        self.add_state("target", [])

    def update(self, preds, target):
        self.preds.append(preds.softmax(dim=1))  # LEAK: kept_output KEPT
        self.target.append(target)

    def compute(self):
        return torch.cat(self.preds).gather(1, torch.cat(self.target)[:, None]).mean()


class MetricCollection(nn.ModuleDict):
    def observe(self, preds, target):
        for metric in self.values():
            metric(preds, target)


def main(steps, device):
    model = nn.Sequential(nn.Linear(32, 128), nn.SiLU(), nn.Linear(128, 256)).to(device)
    metrics = MetricCollection({"precision": AveragePrecision()}).to(device)
    optimizer = torch.optim.NAdam(model.parameters())
    for _ in range(steps):
        x, y = torch.randn(128, 32, device=device), torch.randint(0, 256, (128,), device=device)
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metrics.observe(logits.detach(), y)
