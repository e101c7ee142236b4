"""A new head each step, given to the optimizer and never taken from it."""

import torch
from torch import nn


def main(steps, device):
    body = nn.Linear(64, 128).to(device)
    optimizer = torch.optim.Adam(body.parameters(), lr=1e-3)  # HOLDER: optimizer
    for _ in range(steps):
        head = nn.Linear(128, 256).to(device)  # LEAK: optimizer_state
        optimizer.add_param_group({"params": list(head.parameters())})  # KEPT
        loss = head(body(torch.randn(16, 64, device=device))).square().mean()
        optimizer.zero_grad()
        loss.backward()  # LEAK: optimizer_state
        optimizer.step()  # LEAK: optimizer_state
