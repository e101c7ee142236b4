"""Objects that know each other: only the garbage collector frees them, and it seldom comes."""

import gc

import torch
from torch import nn


class Episode:  # HOLDER: Episode
    def __init__(self, features):
        self.features = features  # KEPT
        self.parts = [Part(self)]


class Part:
    def __init__(self, episode):
        self.episode = episode


def main(steps, device):
    model = nn.Linear(128, 256).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gc.disable()  # as many do for speed
    try:
        for _ in range(steps):
            out = model(torch.randn(128, 128, device=device))  # LEAK: reference_cycle
            Episode(out.detach())
            out.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    finally:
        gc.enable()
