"""L-BFGS with a short history, which fills in the first steps."""

import torch
from torch import nn


def main(steps, device):
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 8)).to(device)
    x, y = torch.randn(128, 64, device=device), torch.randn(128, 8, device=device)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, history_size=8)

    def closure():
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)
