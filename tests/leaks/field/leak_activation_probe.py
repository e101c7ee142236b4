"""A forward hook that stores what a layer puts out, to look at it later, and is never removed."""

import torch
from torch import nn

activations = []  # HOLDER: activations


def keep(_module, _args, output):
    activations.append(output)  # KEPT EDIT: activations


def main(steps, device):
    model = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 10)).to(device)
    model[1].register_forward_hook(keep)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        x = torch.randn(64, 128, device=device)
        loss = nn.functional.cross_entropy(
            model(x),  # LEAK: hook
            torch.randint(0, 10, (64,), device=device),
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
