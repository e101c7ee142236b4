"""The last four outputs, in a list that is cut by hand, and the two worst batches, in a heap."""

import heapq

import torch
from torch import nn


def main(steps, device):
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recent, worst = [], []
    for step in range(steps):
        x = torch.randn(96, 64, device=device)
        out = model(x)
        loss = out.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recent.append(out.detach())
        if len(recent) > 4:
            recent.pop(0)
        heapq.heappush(worst, (loss.item(), step, x))
        if len(worst) > 2:
            heapq.heappop(worst)
