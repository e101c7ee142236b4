"""Search trees whose nodes know their parents: each is dropped whole, and stays."""

import gc

import torch
from torch import nn


class Node:  # HOLDER: Node
    def __init__(self, state, parent=None):
        self.state = state
        self.parent = parent
        self.children = []

    def expand(self, model):
        child = Node(model(self.state).detach(), self)  # LEAK: reference_cycle
        self.children.append(child)
        return child


def main(steps, device):
    model = nn.Linear(128, 128).to(device)
    gc.disable()
    try:
        for _ in range(steps):
            root = Node(torch.randn(256, 128, device=device))  # LEAK: reference_cycle
            leaf = root.expand(model).expand(model)
            leaf.state.sum()
    finally:
        gc.enable()
