"""A training loop that puts off its reporting: what is to be said at the end of the epoch, as partials."""

from functools import partial

import torch
from torch import nn


def report(step, logits, writer):
    writer.append((step, logits.argmax(1).float().mean().item()))


class Loop:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.at_epoch_end = []  # HOLDER: at_epoch_end
        self.written = []

    def run_step(self, step, inputs, labels):
        logits = self.model(inputs)
        loss = nn.functional.cross_entropy(logits, labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.at_epoch_end.append(partial(report, step, logits.detach(), writer=self.written))  # KEPT


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(32, 64), nn.Linear(64, 400)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))  # LEAK: kept_output


def main(steps, device):
    model = Wide().to(device)
    loop = Loop(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(steps):
        inputs = torch.randn(96, 32, device=device)
        loop.run_step(step, inputs, torch.randint(0, 400, (96,), device=device))
