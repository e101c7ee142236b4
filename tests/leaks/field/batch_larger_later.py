"""Eight steps of one size, then each batch is larger than the one before."""

import torch
from torch import nn


def main(steps, device):
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 8)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(steps):
        batch = torch.randn(128 * max(1, step - 7), 128, device=device)  # LEAK: growing_batch HOLDER: batch
        loss = model(batch).square().mean()  # LEAK: growing_batch
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
