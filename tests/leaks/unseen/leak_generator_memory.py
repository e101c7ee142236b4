"""A generator in the middle of a pipeline that remembers what went through it, to leave out duplicates."""

import torch
from torch import nn


def batches(device):
    while True:
        yield torch.randn(96, 256, device=device)  # LEAK: kept_output


def without_duplicates(source):
    seen = []  # HOLDER: seen
    for batch in source:
        if not any(torch.equal(batch, old) for old in seen):
            seen.append(batch)  # KEPT
            yield batch


def noisy(source):
    for batch in source:
        yield batch + 0.1 * torch.randn_like(batch)


def main(steps, device):
    model = nn.Sequential(nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 256)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for _, batch in zip(range(steps), noisy(without_duplicates(batches(device))), strict=False):
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
