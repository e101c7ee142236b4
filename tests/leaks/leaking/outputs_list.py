"""Outputs collected on the device for an epoch's end that never comes."""

import torch
from torch import nn


def main(steps, device):
    model = nn.Linear(128, 512).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    outputs = []  # HOLDER: outputs
    for _ in range(steps):
        x = torch.randn(64, 128, device=device)
        out = model(x)  # LEAK: kept_output
        loss = out.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        outputs.append(out)  # KEPT
