"""A moving average of the weights, of the loss, and of the outputs."""

import copy

import torch
from torch import nn


def main(steps, device):
    model = nn.Linear(256, 256).to(device)
    average = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters())
    smooth, centre = 0.0, torch.zeros(256, device=device)
    for _ in range(steps):
        out = model(torch.randn(64, 256, device=device))
        loss = out.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        smooth = 0.9 * smooth + 0.1 * loss.detach()
        centre = 0.9 * centre + 0.1 * out.detach().mean(0)
        with torch.no_grad():
            for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
                mine.lerp_(theirs, 0.01)
