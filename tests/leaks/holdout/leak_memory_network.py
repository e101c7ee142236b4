"""A memory that is read and written each step, its graph never cut."""

import torch
from torch import nn


class Memory(nn.Module):
    def __init__(self):
        super().__init__()
        self.write = nn.Linear(128, 128)
        self.slots = torch.zeros(128, 128)  # HOLDER: slots

    def forward(self, x):
        self.slots = torch.sigmoid(self.write(self.slots.to(x.device)) + x)  # LEAK: undetached_state KEPT
        return self.slots


def main(steps, device):
    model = Memory().to(device)
    for _ in range(steps):
        out = model(torch.randn(128, 128, device=device)).mean()
        out.item()
