"""functools.lru_cache with a bound, under keys that never come again."""

from functools import lru_cache

import torch
from torch import nn


@lru_cache(maxsize=4)
def positions(step, device):
    angles = torch.arange(256, device=device)[:, None] * (1 + step) / torch.arange(1, 129, device=device)
    return torch.cat((angles.sin(), angles.cos()), dim=1)


def main(steps, device):
    model = nn.Linear(256, 64).to(device)
    optimizer = torch.optim.RMSprop(model.parameters())
    for step in range(steps):
        loss = model(positions(step, device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    positions.cache_clear()
