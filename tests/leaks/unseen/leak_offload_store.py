"""Hooks of autograd put saved tensors aside for a later look; fetching them does not take them out."""

import itertools

import torch
from torch import nn


class Store:
    def __init__(self):
        self.tickets = itertools.count()
        self.parked = {}  # HOLDER: parked

    def pack(self, tensor):
        ticket = next(self.tickets)
        self.parked[ticket] = tensor.detach().clone()  # LEAK: cache KEPT
        return ticket

    def unpack(self, ticket):
        return self.parked[ticket]


def main(steps, device):
    store = Store()
    model = nn.Sequential(nn.Linear(64, 256), nn.Sigmoid(), nn.Linear(256, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        with torch.autograd.graph.saved_tensors_hooks(store.pack, store.unpack):
            loss = model(torch.randn(64, 64, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
