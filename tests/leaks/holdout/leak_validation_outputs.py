"""Every third step an evaluation whose predictions go into a dict of the run's results, by step."""

import torch
from torch import nn

results = {}  # HOLDER: results


def main(steps, device):
    model = nn.Linear(64, 128).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        model(torch.randn(32, 64, device=device)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            results[step] = model(torch.randn(256, 64, device=device))  # LEAK: cache KEPT
