"""Second derivatives, and gradients that are never set to None: each keeps the graph of all before it."""

import torch
from torch import nn


def main(steps, device):
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh()).to(
        device
    )  # HOLDER: grad
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(steps):
        loss = model(torch.randn(64, 64, device=device)).pow(2).mean()  # LEAK: create_graph_cycle
        loss.backward(create_graph=True)  # LEAK: create_graph_cycle
        optimizer.step()
