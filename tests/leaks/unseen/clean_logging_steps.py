"""A loop in the manner of transformers' Trainer: the loss is summed up detached and logged every ten."""

import torch
from torch import nn


class Callbacks:
    def __init__(self):
        self.logs = []

    def on_log(self, state):
        self.logs.append(dict(state))


def main(steps, device):
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    callbacks, total = Callbacks(), torch.zeros((), device=device)
    for step in range(steps):
        x, y = torch.randn(128, 64, device=device), torch.randint(0, 10, (128,), device=device)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        total += loss.detach()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        model.zero_grad()
        if step % 10 == 9:
            callbacks.on_log({"loss": total.item() / 10, "norm": norm.item(), "lr": scheduler.get_last_lr()})
            total -= total
