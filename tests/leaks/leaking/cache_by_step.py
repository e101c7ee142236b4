"""A cache whose key is the step: nothing is ever found in it, nothing ever leaves it."""

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(128, 256)
        self.cache = {}  # HOLDER: cache

    def forward(self, x, step):
        if step not in self.cache:
            self.cache[step] = self.net(x).detach()  # LEAK: cache KEPT
        return self.net(x) + self.cache[step]


def main(steps, device):
    model = Encoder().to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(steps):
        loss = model(torch.randn(128, 128, device=device), step).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
