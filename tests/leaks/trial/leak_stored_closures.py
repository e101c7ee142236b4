"""An optimizer that keeps the closures it was given, to evaluate them again: each holds its batch."""

import torch
from torch import nn


class Lookback(torch.optim.Optimizer):
    """Gradient descent that could go back to what earlier closures said."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.closures = []  # HOLDER: closures

    def step(self, closure):
        with torch.enable_grad():
            loss = closure()
        self.closures.append(closure)  # KEPT
        with torch.no_grad():
            for group in self.param_groups:
                for param in group["params"]:
                    param.add_(param.grad, alpha=-group["lr"])
        return loss


def main(steps, device):
    model = nn.Sequential(nn.Linear(256, 64), nn.ELU(), nn.Linear(64, 1)).to(device)
    optimizer = Lookback(model.parameters(), lr=0.01)
    for _ in range(steps):
        inputs = torch.randn(128, 256, device=device)  # LEAK: kept_output
        targets = torch.randn(128, 1, device=device)

        def closure(inputs=inputs, targets=targets):
            optimizer.zero_grad()
            loss = (model(inputs) - targets).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
