"""Weights are averaged at the end over snapshots: a deep copy of the state dict after every step."""

import copy

import torch
from torch import nn


class Snapshots:
    def __init__(self):
        self.states = []  # HOLDER: states

    def take(self, model):
        self.states.append(copy.deepcopy(model.state_dict()))  # LEAK: kept_output KEPT

    def average(self):
        return {name: sum(state[name] for state in self.states) / len(self.states) for name in self.states[0]}


def main(steps, device):
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    snapshots = Snapshots()
    for _ in range(steps):
        x = torch.randn(64, 64, device=device)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        snapshots.take(model)
