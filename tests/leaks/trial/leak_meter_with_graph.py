"""An average meter shown behind the progress bar adds up validation losses with their graphs."""

import torch
from torch import nn
from torch.nn import functional


class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, count=1):
        self.sum = self.sum + value * count  # HOLDER: sum KEPT
        self.count += count

    @property
    def average(self):
        return self.sum / self.count


class Progress:
    def __init__(self, total):
        self.total, self.at, self.postfix = total, 0, {}

    def set_postfix(self, **values):
        self.postfix.update(values)
        self.at += 1


def main(steps, device):
    model = nn.Sequential(nn.Linear(64, 256), nn.Sigmoid(), nn.Linear(256, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=1000)
    meters, progress = {"train": AverageMeter(), "valid": AverageMeter()}, Progress(steps)
    for _ in range(steps):
        model.train()
        loss = functional.cross_entropy(
            model(torch.randn(64, 64, device=device)), torch.randint(0, 10, (64,), device=device)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        meters["train"].update(loss.item())
        model.eval()
        images = torch.randn(96, 64, device=device)  # LEAK: loss_with_graph
        labels = torch.randint(0, 10, (96,), device=device)
        meters["valid"].update(functional.cross_entropy(model(images), labels))  # LEAK: loss_with_graph
        progress.set_postfix(train=meters["train"].average, valid=float(meters["valid"].average))
