"""An embedding with sparse gradients that are never cleared: each step's rows are appended."""

import torch
from torch import nn


def main(steps, device):
    table = nn.Embedding(5000, 64, sparse=True).to(device)  # HOLDER: grad
    optimizer = torch.optim.SGD(table.parameters(), lr=0.01)
    for _ in range(steps):
        words = torch.randint(5000, (512,), device=device)
        loss = table(words).square().mean()
        loss.backward()  # LEAK: gradient_not_cleared
        optimizer.step()
