"""lru_cache on a method that is asked for something new each step: it keeps every answer, and the module."""

from functools import lru_cache

import torch
from torch import nn


class Positions(nn.Module):
    def __init__(self, width, device):
        super().__init__()
        self.width, self.device = width, device
        self.scale = nn.Parameter(torch.ones(1, device=device))

    @lru_cache(maxsize=None)  # noqa: B019, UP033
    def encoding(self, offset, length):  # HOLDER: encoding
        position = torch.arange(offset, offset + length, device=self.device, dtype=torch.float32)
        rate = torch.exp(torch.arange(0, self.width, 2, device=self.device) * -0.01)
        angle = position[:, None] * rate
        return torch.cat([angle.sin(), angle.cos()], dim=1)  # LEAK: cache

    def forward(self, x, offset):
        return x + self.scale * self.encoding(offset, x.shape[1])


def main(steps, device):
    positions = Positions(256, device)
    model = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 256)).to(device)
    optimizer = torch.optim.AdamW([*positions.parameters(), *model.parameters()])
    for step in range(steps):
        x = torch.randn(2, 96, 256, device=device)
        out = model(positions(x, step * 96))
        (out - x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
