"""The best weights so far are kept: a deep copy, replaced when there is a better one."""

import copy

import torch
from torch import nn


def main(steps, device):
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    best, best_state, history = float("inf"), None, []
    x = torch.randn(128, 64, device=device)
    for _ in range(steps):
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
        if history[-1] < best:
            best, best_state = history[-1], copy.deepcopy(model.state_dict())
    model.load_state_dict(best_state)
