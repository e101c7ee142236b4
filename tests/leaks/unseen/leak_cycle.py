"""itertools.cycle around a loader: it keeps a copy of every batch, to give them again."""

import itertools

import torch
from torch import nn


class Loader:
    """A streamed data set, longer than any training."""

    def __init__(self, device):
        self.device = device

    def __iter__(self):
        for _ in range(100_000):
            yield torch.randn(64, 512, device=self.device)  # LEAK: kept_output


def main(steps, device):
    endless = itertools.cycle(Loader(device))  # HOLDER: endless KEPT
    model = nn.Linear(512, 16).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        loss = model(next(endless)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
