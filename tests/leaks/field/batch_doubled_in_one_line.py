"""The largest batch is looked for by doubling; a whole step is one line."""

import torch
from torch import nn


def main(steps, device):
    model = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128)).to(device)
    o = torch.optim.Adam(model.parameters())
    n = 32
    for _ in range(steps):
        # fmt: off
        x = torch.randn(n, 128, device=device); o.zero_grad(); model(x).square().mean().backward(); o.step()  # noqa: E702  # LEAK: growing_batch HOLDER: x
        # fmt: on
        n = min(2 * n, 1 << 14)
