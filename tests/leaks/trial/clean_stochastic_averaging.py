"""Averaged weights from the middle of training on, with activation checkpoints and accumulation."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(128, 128), nn.GELU()) for _ in range(4))
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


def main(steps, device):
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    averaged = None
    for step in range(steps):
        for _ in range(3):
            loss = model(torch.randn(64, 128, device=device)).logsumexp(dim=1).mean() / 3
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step >= steps // 2:
            averaged = averaged or AveragedModel(model)
            averaged.update_parameters(model)
