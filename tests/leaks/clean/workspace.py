"""A workspace that is made larger in the first steps, as cuDNN's and cuBLAS's are."""

import torch
from torch import nn


def main(steps, device):
    model = nn.Linear(128, 128).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    workspace = {}
    for step in range(steps):
        size = 64 << min(step, 4)
        if size not in workspace:
            workspace[size] = torch.empty(size, 256, device=device)
        loss = model(torch.randn(64, 128, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
