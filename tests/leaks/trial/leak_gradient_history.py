"""For a plot of gradients over time every gradient is copied, by name."""

from collections import defaultdict

import torch
from torch import nn


class GradientLog:
    def __init__(self):
        self.by_name = defaultdict(list)  # HOLDER: by_name

    def record(self, model):
        for name, param in model.named_parameters():
            if param.grad is not None:
                self.by_name[name].append(param.grad.detach().clone())  # LEAK: kept_output KEPT


def main(steps, device):
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    log = GradientLog()
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(32, 64, device=device)).square().mean().backward()
        log.record(model)
        optimizer.step()
