"""A progress bar that remembers each of its postfixes, among them a map of attention."""

import io

import torch
from torch import nn


class Progress:
    def __init__(self, iterable, out):
        self.iterable, self.out = iterable, out
        self.postfix, self.shown = {}, []  # HOLDER: shown

    def __iter__(self):
        for item in self.iterable:
            yield item
            self.out.write(f"\r{sorted(self.postfix)}")
            self.shown.append(dict(self.postfix))  # KEPT

    def set_postfix(self, **values):
        self.postfix.update(values)


def main(steps, device):
    model = nn.MultiheadAttention(64, 4, batch_first=True).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bar = Progress(range(steps), io.StringIO())
    for _ in bar:
        x = torch.randn(4, 80, 64, device=device)
        out, weights = model(x, x, x)  # LEAK: kept_output
        loss = (out - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bar.set_postfix(loss=loss.item(), weights=weights.detach())
