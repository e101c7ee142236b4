"""A mask that is kept and made again when a longer sentence comes, up to the longest."""

import random

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(64, 192)
        self.mask = None

    def forward(self, x):
        n = x.shape[1]
        if self.mask is None or len(self.mask) < n:
            self.mask = torch.ones(n, n, device=x.device).tril()
        q, k, v = self.qkv(x).chunk(3, -1)
        return ((q @ k.transpose(1, 2)) * self.mask[:n, :n]) @ v


def main(steps, device):
    random.seed(3)
    model = Attention().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    for _ in range(steps):
        loss = model(torch.randn(2, random.randint(16, 256), 64, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
