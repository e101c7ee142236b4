"""A recurrent net that detaches its state, as it should, with a window of the last states."""

from collections import deque

import torch
from torch import nn


def main(steps, device):
    cell = nn.GRUCell(64, 128).to(device)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
    hidden, window = torch.zeros(64, 128, device=device), deque(maxlen=6)
    for _ in range(steps):
        hidden = cell(torch.randn(64, 64, device=device), hidden.detach())
        window.append(hidden.detach())
        optimizer.zero_grad()
        hidden.square().mean().backward()
        optimizer.step()
