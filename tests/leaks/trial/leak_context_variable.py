"""Intermediate results are collected for debugging in a list within a context variable."""

import contextvars

import torch
from torch import nn

collected = contextvars.ContextVar("collected")  # HOLDER: collected


def keep(name, value):
    collected.get().append((name, value))
    return value


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        hidden = keep("hidden", torch.tanh(self.inner(x)))  # LEAK: kept_output
        return x + self.outer(hidden)


def main(steps, device):
    collected.set([])
    model = nn.Sequential(Block(), nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        loss = model(torch.randn(96, 64, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    collected.set([])
