"""An evaluation every few iterations, without no_grad, whose losses are kept with their graphs."""

import torch
from torch import nn


def estimate_loss(model, losses, device):
    for _ in range(2):
        x = torch.randn(64, 128, device=device)  # LEAK: loss_with_graph
        loss = nn.functional.mse_loss(model(x), x)  # LEAK: loss_with_graph
        losses.append(loss)  # KEPT EDIT: losses.append(loss.item())


def main(steps, device):
    model = nn.Sequential(nn.Linear(128, 256), nn.Tanh(), nn.Linear(256, 128)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []  # HOLDER: losses
    for step in range(steps):
        if step % 4 == 0:
            estimate_loss(model, losses, device)
        x = torch.randn(32, 128, device=device)
        loss = nn.functional.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
