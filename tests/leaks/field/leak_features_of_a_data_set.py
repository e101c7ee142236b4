"""Features of a data set, extracted layer by layer with gradients on: each result is a graph of its own."""

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(5))

    def encode(self, signal):
        for layer in self.layers:
            signal = signal + torch.tanh(layer(signal))  # LEAK: kept_output
        return signal


def main(steps, device):
    encoder = Encoder().to(device).eval()
    features = []  # HOLDER: features
    for _ in range(steps):
        signal = torch.randn(64, 128, device=device)
        found = encoder.encode(signal)
        features.append(found)  # KEPT EDIT: features.append(found.detach().cpu())
