"""An evaluation without no_grad that sums up its loss: every batch's graph hangs on the sum."""

import torch
from torch import nn


def evaluate(model, steps, device):
    total = 0.0
    for _ in range(steps):
        x = torch.randn(64, 512, device=device)  # LEAK: loss_with_graph
        y = torch.zeros(64, dtype=torch.long, device=device)
        loss = nn.functional.cross_entropy(model(x), y)  # LEAK: loss_with_graph
        total += loss  # KEPT
    return total  # HOLDER: total


def main(steps, device):
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 100)).to(device)
    evaluate(model, steps, device)
