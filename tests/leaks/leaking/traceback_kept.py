"""Bad batches are counted by keeping their exceptions, and an exception keeps the frames it passed."""

import torch
from torch import nn

errors = []  # HOLDER: errors


def check(features):
    scaled = features * 2  # LEAK: traceback
    if scaled.numel() > 0:
        raise ValueError("a bad batch")


def main(steps, device):
    model = nn.Linear(64, 256).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        out = model(torch.randn(128, 64, device=device))  # LEAK: traceback
        try:
            check(out.detach())  # LEAK: traceback
        except ValueError as error:
            errors.append(error)  # KEPT
        out.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
