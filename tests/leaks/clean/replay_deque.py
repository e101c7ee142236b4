"""A long queue with a bound that is not reached within 30 steps: it says itself how far it grows."""

from collections import deque

import torch
from torch import nn


def main(steps, device):
    model = nn.Linear(128, 128).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    memory = deque(maxlen=100)
    for _ in range(steps):
        memory.append(torch.randn(128, 128, device=device))
        loss = model(memory[-1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
