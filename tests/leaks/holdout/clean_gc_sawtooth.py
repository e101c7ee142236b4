"""Cycles that the garbage collector frees every seventh step."""

import gc

import torch
from torch import nn


class Box:
    def __init__(self, value):
        self.value, self.me = value, self


def main(steps, device):
    model = nn.Linear(128, 128).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        out = model(torch.randn(64, 128, device=device))
        Box(out.detach())
        out.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 7 == 6:
            gc.collect()
