"""A hook that is a closure over its own list."""

import torch
from torch import nn


def watch(module):
    kept = []  # HOLDER: kept

    def hook(module, inputs, output):  # noqa: ARG001
        kept.append(output)  # KEPT

    module.register_forward_hook(hook)


def main(steps, device):
    model = nn.Sequential(nn.Linear(64, 512), nn.Sigmoid(), nn.Linear(512, 8)).to(device)
    watch(model[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        loss = model(torch.randn(64, 64, device=device)).square().mean()  # LEAK: hook
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
