"""A running mean of the validation loss that nobody told not to want gradients."""

import torch
from torch import nn


class Mean:
    def __init__(self):
        self.value = 0.0  # HOLDER: value

    def update(self, value):
        self.value = 0.99 * self.value + 0.01 * value  # KEPT


def main(steps, device):
    model = nn.Sequential(nn.Conv1d(4, 16, 3), nn.ReLU(), nn.Conv1d(16, 4, 3)).to(device)
    mean = Mean()
    model.eval()
    for _ in range(steps):
        x = torch.randn(8, 4, 1024, device=device)  # LEAK: loss_with_graph
        mean.update(model(x).abs().mean())  # LEAK: loss_with_graph
