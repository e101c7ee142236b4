"""A cache on the class, by the identity of a tensor that is new each time."""

import torch
from torch import nn


class Positions(nn.Module):
    masks = {}  # noqa: RUF012 # HOLDER: masks

    def forward(self, x):
        key = id(x), len(self.masks)
        self.masks[key] = torch.ones(256, 256, device=x.device).tril()  # LEAK: cache KEPT
        return x @ self.masks[key]


def main(steps, device):
    model = nn.Sequential(nn.Linear(64, 256), Positions(), nn.Linear(256, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for _ in range(steps):
        model(torch.randn(8, 64, device=device)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
