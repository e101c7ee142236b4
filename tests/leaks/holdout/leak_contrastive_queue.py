"""A queue of keys for a contrastive loss, with a bound that compares the wrong way round."""

import torch
from torch import nn

QUEUE = 8


class Contrast(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(64, 128)
        self.queue = []  # HOLDER: queue

    def forward(self, x):
        keys = self.encoder(x)  # LEAK: kept_output
        self.queue.append(keys.detach())  # KEPT
        if len(self.queue) < QUEUE:
            self.queue = self.queue[-QUEUE:]
        return keys @ self.queue[-1].t()


def main(steps, device):
    model = Contrast().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for _ in range(steps):
        model(torch.randn(256, 64, device=device)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
