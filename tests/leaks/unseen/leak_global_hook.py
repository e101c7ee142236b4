"""A hook on all modules there are, as a partial with the store that it fills; profiling left on."""

from functools import partial

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook


def collect(store, module, inputs, output):  # noqa: ARG001
    if isinstance(module, nn.Conv1d):
        store.append(output.detach())  # KEPT


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv1d(4, 16, 3, padding=1), nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.conv(x).mean(-1))  # LEAK: hook


def main(steps, device):
    activations = []  # HOLDER: activations
    handle = register_module_forward_hook(partial(collect, activations))
    try:
        model = Net().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(steps):
            loss = model(torch.randn(16, 4, 128, device=device)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    finally:
        handle.remove()
