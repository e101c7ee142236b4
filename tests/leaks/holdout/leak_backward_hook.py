"""A hook on gradients that keeps every one of them."""

import torch
from torch import nn

recorded = {}  # HOLDER: recorded


def keep(module, grad_input, grad_output):  # noqa: ARG001
    recorded.setdefault(type(module).__name__, []).append(grad_output[0])  # KEPT


def main(steps, device):
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 16)).to(device)
    model[0].register_full_backward_hook(keep)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        loss = model(torch.randn(128, 64, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()  # LEAK: hook
        optimizer.step()
