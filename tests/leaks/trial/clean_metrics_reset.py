"""Predictions of an epoch are collected on the device, and dropped at its end; epochs of 12 steps."""

import torch
from torch import nn


class Epoch:
    def __init__(self):
        self.predictions, self.targets = [], []

    def add(self, predictions, targets):
        self.predictions.append(predictions)
        self.targets.append(targets)

    def close(self):
        accuracy = (torch.cat(self.predictions).argmax(1) == torch.cat(self.targets)).float().mean().item()
        self.predictions.clear()
        self.targets.clear()
        return accuracy


def main(steps, device):
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 200)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    epoch, accuracies = Epoch(), []
    for step in range(steps):
        x, y = torch.randn(96, 64, device=device), torch.randint(0, 200, (96,), device=device)
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        epoch.add(logits.detach(), y)
        if (step + 1) % 12 == 0:
            accuracies.append(epoch.close())
