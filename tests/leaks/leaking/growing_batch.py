"""Every hard sample is added to the next batch, and none is ever taken out."""

import torch
from torch import nn


def main(steps, device):
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    n_samples = 64
    for _ in range(steps):
        x = torch.randn(n_samples, 256, device=device)  # LEAK: growing_batch HOLDER: x
        loss = model(x).square().mean()  # LEAK: growing_batch
        optimizer.zero_grad()
        loss.backward()  # LEAK: growing_batch
        optimizer.step()
        n_samples += 64
