"""Every step registers a hook to look at activations, and never removes it: each hook has its own copy."""

import torch
from torch import nn


def probe(layer):
    """What the layer gives out, once it runs."""
    seen = {}  # HOLDER: seen

    def look(module, inputs, output):  # noqa: ARG001
        if not seen:
            seen["activation"] = output.detach().clone()  # LEAK: hook KEPT

    layer.register_forward_hook(look)
    return seen


def dead_fraction(activation):
    return (activation <= 0).float().mean().item()


def main(steps, device):
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    model.to(device)
    optimizer = torch.optim.RMSprop(model.parameters())
    for _ in range(steps):
        seen = probe(model[3])
        loss = model(torch.randn(128, 64, device=device)).logsumexp(dim=1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dead_fraction(seen["activation"])
