"""A straight-through quantizer that puts tensors on ctx; a moving average of the loss keeps its nodes."""

import torch
from torch import nn


class Quantize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        ctx.low = x.min()
        ctx.inside = (x - ctx.low).abs()  # LEAK: saved_on_ctx KEPT
        return torch.round(x * levels) / levels

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (ctx.inside < 4), None


class QuantizedLinear(nn.Linear):
    def forward(self, x):
        return super().forward(Quantize.apply(x, 15))


def main(steps, device):
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), QuantizedLinear(256, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    running = None  # HOLDER: running
    for _ in range(steps):
        loss = model(torch.randn(128, 32, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running = loss if running is None else 0.9 * running + 0.1 * loss
