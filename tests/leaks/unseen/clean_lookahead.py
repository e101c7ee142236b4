"""Lookahead: slow weights, made at the fifth step, move every fifth."""

import torch
from torch import nn


class Lookahead:
    def __init__(self, inner, every=5, rate=0.5):
        self.inner, self.every, self.rate = inner, every, rate
        self.slow, self.n_steps = {}, 0

    def step(self):
        self.inner.step()
        self.n_steps += 1
        if self.n_steps % self.every == 0:
            self.move()

    @torch.no_grad()
    def move(self):
        for group in self.inner.param_groups:
            for fast in group["params"]:
                slow = self.slow.setdefault(fast, fast.detach().clone())
                slow.add_(fast - slow, alpha=self.rate)
                fast.copy_(slow)


def main(steps, device):
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64)).to(device)
    optimizer = Lookahead(torch.optim.Adam(model.parameters()))
    for _ in range(steps):
        x = torch.randn(32, 64, device=device)
        loss = (model(x) - x).abs().mean()
        optimizer.inner.zero_grad()
        loss.backward()
        optimizer.step()
