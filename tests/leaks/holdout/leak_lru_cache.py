"""functools.cache on a function of the step."""

import functools

import torch
from torch import nn


@functools.cache
def noise(step, device):  # noqa: ARG001 # HOLDER: noise
    return torch.randn(128, 256, device=device)  # LEAK: cache


def main(steps, device):
    model = nn.Linear(256, 8).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(steps):
        model(noise(step, device)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
