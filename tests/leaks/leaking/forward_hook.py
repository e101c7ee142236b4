"""A forward hook that keeps activations for a picture."""

import torch
from torch import nn

seen = {"first": []}  # HOLDER: seen


def remember(module, inputs, output):  # noqa: ARG001
    seen["first"].append(output.detach())  # KEPT


def main(steps, device):
    model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 8)).to(device)
    model[0].register_forward_hook(remember)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        loss = model(torch.randn(64, 64, device=device)).square().mean()  # LEAK: hook
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
