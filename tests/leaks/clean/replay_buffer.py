"""A replay buffer that fills up to its capacity, then forgets the oldest."""

import random

import torch
from torch import nn

CAPACITY = 16


def main(steps, device):
    random.seed(2)
    model = nn.Linear(128, 128).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    buffer = []
    for _ in range(steps):
        buffer.append(torch.randn(128, 128, device=device))
        if len(buffer) > CAPACITY:
            buffer.pop(0)
        loss = model(random.choice(buffer)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
