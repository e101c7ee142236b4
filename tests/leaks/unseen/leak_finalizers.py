"""weakref.finalize on the model, once a step: the call that waits for its end holds its arguments."""

import weakref

import torch
from torch import nn


def flush(name, values):
    return name, values


def main(steps, device):
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 512)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        out = model(torch.randn(64, 64, device=device))  # LEAK: kept_output
        loss = out.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        weakref.finalize(model, flush, f"step {step}", out.detach()).atexit = False  # HOLDER: finalize KEPT
