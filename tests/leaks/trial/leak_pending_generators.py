"""Augmentations as generators, of which only the first is used: the unfinished ones are kept."""

import torch
from torch import nn


def augmented(batch):
    spectrum = batch.sort(dim=1).values  # LEAK: kept_output
    for scale in (0.9, 1.0, 1.1):
        yield batch + scale * 0.01 * spectrum


def main(steps, device):
    model = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    pending = []  # HOLDER: pending
    for _ in range(steps):
        versions = augmented(torch.randn(128, 256, device=device))  # LEAK: kept_output
        pending.append(versions)  # KEPT
        loss = model(next(versions)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
