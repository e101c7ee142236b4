"""A Function that puts its input on ctx instead of save_for_backward: backward does not let go of it."""

import torch
from torch import nn


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.scaled = x * 3  # LEAK: saved_on_ctx KEPT
        return ctx.scaled.sum()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.full_like(ctx.scaled, 3.0)


def main(steps, device):
    model = nn.Linear(64, 256).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    losses = []  # HOLDER: scaled
    for _ in range(steps):
        loss = Scale.apply(model(torch.randn(128, 64, device=device)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
