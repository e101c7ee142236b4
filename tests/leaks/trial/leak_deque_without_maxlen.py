"""Feature statistics over the last batches, in a deque that nobody gave a length."""

from collections import deque

import torch
from torch import nn


class Smoothed:
    def __init__(self, window=4):
        self.window = window
        self.recent = deque()  # HOLDER: recent

    def add(self, features):
        self.recent.append(features)  # KEPT

    def mean(self):
        return torch.stack(list(self.recent)[-self.window :]).mean()


def main(steps, device):
    backbone, head = nn.Linear(64, 256).to(device), nn.Linear(256, 10).to(device)
    optimizer = torch.optim.Adagrad([*backbone.parameters(), *head.parameters()])
    smoothed = Smoothed()
    for _ in range(steps):
        features = torch.relu(backbone(torch.randn(96, 64, device=device)))  # LEAK: kept_output
        smoothed.add(features.detach())
        loss = head(features).square().mean() + 0.01 * smoothed.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
