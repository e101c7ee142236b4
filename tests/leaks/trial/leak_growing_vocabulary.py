"""An embedding that gets rows for new words every step: one block, larger each time."""

import torch
from torch import nn


class Vocabulary(nn.Module):
    def __init__(self, width, device):
        super().__init__()
        self.width, self.device = width, device
        self.table = nn.Parameter(torch.randn(64, width, device=device))  # HOLDER: table

    def extend(self, count):
        fresh = torch.randn(count, self.width, device=self.device)
        self.table = nn.Parameter(torch.cat([self.table.detach(), fresh]))  # LEAK: growing_tensor KEPT

    def forward(self, words):
        return self.table[words]


def main(steps, device):
    vocabulary, head = Vocabulary(256, device), nn.Linear(256, 8).to(device)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for _ in range(steps):
        vocabulary.extend(96)
        words = torch.randint(0, len(vocabulary.table), (64,), device=device)
        with torch.no_grad():
            embedded = vocabulary(words)
        loss = head(embedded).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
