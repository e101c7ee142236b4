"""Sentences of every length; the last batch and its outputs are still there when the step ends."""

import random

import torch
from torch import nn


def main(steps, device):
    random.seed(1)
    model = nn.Sequential(nn.Embedding(100, 64), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 100)).to(
        device
    )
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        words = torch.randint(100, (8, random.randint(10, 400)), device=device)
        scores = model(words)
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), words.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
