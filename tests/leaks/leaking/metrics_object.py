"""A metric that keeps predictions on the device until somebody computes it, and nobody does."""

import torch
from torch import nn


class Accuracy:
    def __init__(self):
        self.predictions = []  # HOLDER: predictions
        self.targets = []

    def update(self, predictions, targets):
        self.predictions.append(predictions.detach())  # KEPT
        self.targets.append(targets)


def main(steps, device):
    model = nn.Linear(64, 300).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accuracy = Accuracy()
    for _ in range(steps):
        target = torch.zeros(128, dtype=torch.long, device=device)
        scores = model(torch.randn(128, 64, device=device))  # LEAK: kept_output
        loss = nn.functional.cross_entropy(scores, target)
        accuracy.update(scores, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
