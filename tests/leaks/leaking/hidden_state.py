"""A recurrent net whose state is carried from batch to batch and never detached."""

import torch
from torch import nn


def main(steps, device):
    cell = nn.RNNCell(128, 256).to(device)
    head = nn.Linear(256, 16).to(device)
    optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=1e-6)
    hidden = torch.zeros(64, 256, device=device)  # HOLDER: hidden
    for _ in range(steps):
        x = torch.randn(64, 128, device=device)  # LEAK: undetached_state
        hidden = cell(x, hidden)  # LEAK: undetached_state KEPT
        loss = head(hidden).mean()
        # Fresh weights each time, or the version counters would object.
        torch.autograd.grad(loss, list(head.parameters()), retain_graph=True)
        optimizer.step()
