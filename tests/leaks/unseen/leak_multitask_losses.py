"""Two heads on a trunk, one backward each, and the losses of both in a dict of lists."""

from collections import defaultdict

import torch
from torch import nn


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(32, 64), nn.ReLU())
        self.depth = nn.Sequential(nn.Linear(64, 256), nn.Sigmoid(), nn.Linear(256, 1))
        self.labels = nn.Linear(64, 8)

    def forward(self, x):
        shared = self.trunk(x)
        depth = self.depth(shared)  # LEAK: retain_graph
        return depth, self.labels(shared)


def main(steps, device):
    losses = defaultdict(list)  # HOLDER: losses
    model = TwoHeads().to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        x = torch.randn(128, 32, device=device)
        depth, logits = model(x)
        found = {
            "depth": depth.abs().mean(),
            "labels": nn.functional.cross_entropy(logits, torch.randint(0, 8, (128,), device=device)),
        }
        optimizer.zero_grad()
        found["depth"].backward(retain_graph=True)
        found["labels"].backward()
        optimizer.step()
        for name, loss in found.items():
            losses[name].append(loss)  # KEPT
