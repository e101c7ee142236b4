"""A small diffusion model: random timesteps, an average of the weights, samples drawn now and then."""

import copy
import random

import torch
from torch import nn


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(100, 64)
        self.body = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 1, 3, padding=1))
        self.scale = nn.Linear(64, 1)

    def forward(self, x, t):
        return self.body(x) * self.scale(self.time(t))[:, :, None, None]


@torch.no_grad()
def sample(model, device, steps=4):
    x = torch.randn(8, 1, 16, 16, device=device)
    for t in reversed(range(steps)):
        x = x - 0.1 * model(x, torch.full((8,), t, device=device))
    return x


def main(steps, device):
    random.seed(3)
    model = Denoiser().to(device)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    chance = torch.linspace(0.99, 0.01, 100, device=device)
    shown = None
    for step in range(steps):
        images = torch.randn(random.choice((16, 24, 32)), 1, 16, 16, device=device)
        t = torch.randint(0, 100, (len(images),), device=device)
        noise = torch.randn_like(images)
        kept = chance[t][:, None, None, None]
        loss = (model(kept * images + (1 - kept) * noise, t) - noise).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
                mine.lerp_(theirs, 0.01)
        if step % 7 == 0:
            shown = sample(average, device)
    return shown
