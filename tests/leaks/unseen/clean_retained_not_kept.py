"""retain_graph=True where it is needed: two losses of one graph, of which only numbers are kept."""

import torch
from torch import nn


def main(steps, device):
    encoder = nn.Sequential(nn.Linear(64, 256), nn.Tanh())
    heads = nn.ModuleList([nn.Linear(256, 4), nn.Linear(256, 8)])
    model = nn.ModuleDict({"encoder": encoder, "heads": heads}).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    curves = {"first": [], "second": []}
    for _ in range(steps):
        shared = encoder(torch.randn(128, 64, device=device))
        losses = [head(shared).square().mean() for head in heads]
        optimizer.zero_grad()
        losses[0].backward(retain_graph=True)
        losses[1].backward()
        optimizer.step()
        for name, loss in zip(curves, losses, strict=True):
            curves[name].append(loss.item())
