"""A function of one's own that sets what it needs on ctx, and a module that keeps each ctx to look into."""

import torch
from torch import nn


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, owner):
        ctx.gate = torch.sigmoid(x)  # LEAK: saved_on_ctx
        ctx.save_for_backward(x)
        owner.contexts.append(ctx)
        return x * ctx.gate

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.gate * (1 + x * (1 - ctx.gate)), None


class Activation(nn.Module):
    def __init__(self):
        super().__init__()
        self.contexts = []  # HOLDER: contexts

    def forward(self, x):
        return Swish.apply(x, self)  # KEPT


def main(steps, device):
    model = nn.Sequential(nn.Linear(32, 256), Activation(), nn.Linear(256, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        loss = model(torch.randn(128, 32, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
