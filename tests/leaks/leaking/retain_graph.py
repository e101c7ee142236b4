"""retain_graph=True "because it said so", and every loss kept for a plot: its whole graph stays."""

import torch
from torch import nn

history = []  # HOLDER: history


def main(steps, device):
    model = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        x = torch.randn(128, 256, device=device)  # LEAK: retain_graph
        out = model(x)  # LEAK: retain_graph
        loss = (out - x).pow(2).mean()  # LEAK: retain_graph
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        history.append(loss)  # KEPT
