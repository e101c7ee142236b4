"""Gradients are accumulated over 4 batches, and outputs kept for as long."""

import torch
from torch import nn


def main(steps, device):
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 64)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        kept = []
        for _ in range(4):
            out = model(torch.randn(64, 128, device=device))
            out.square().mean().backward()
            kept.append(out.detach())
        optimizer.step()
        optimizer.zero_grad()
