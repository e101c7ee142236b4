"""Meta-learning: each step a fresh copy whose gradients keep their graph; they hold each other."""

import torch
from torch import nn


def inner(weights, device):
    fast = nn.Linear(128, 256).to(device)  # LEAK: create_graph_cycle
    x = torch.randn(64, 128, device=device)  # LEAK: create_graph_cycle
    loss = (fast(x) * weights(x)).pow(2).mean()  # LEAK: create_graph_cycle
    loss.backward(create_graph=True)  # LEAK: create_graph_cycle HOLDER: grad
    return loss.detach()


def main(steps, device):
    weights = nn.Linear(128, 256).to(device)
    optimizer = torch.optim.SGD(weights.parameters(), lr=0.1)
    for _ in range(steps):
        inner(weights, device)
        optimizer.step()
        optimizer.zero_grad()
