"""Adam makes its state in the first step, and parts of the model learn only later."""

import torch
from torch import nn


def main(steps, device):
    layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(6)).to(device)
    optimizer = torch.optim.Adam(layers.parameters())
    for step in range(steps):
        x = torch.randn(64, 128, device=device)
        for layer in layers[: 1 + min(step, 5)]:
            x = layer(x).tanh()
        optimizer.zero_grad()
        x.square().mean().backward()
        optimizer.step()
