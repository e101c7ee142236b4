"""A recurrent encoder that is not trained, but neither frozen: its state carries the graph of all chunks."""

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(32, 128)
        self.cell = nn.LSTMCell(128, 128)

    def forward(self, chunk, state):
        hidden, memory = state
        for frame in chunk.unbind(1):
            projected = torch.relu(self.project(frame))
            hidden, memory = self.cell(projected, (hidden, memory))  # LEAK: undetached_state
        return hidden, (hidden, memory)


def main(steps, device):
    encoder, head = Encoder().to(device), nn.Linear(128, 10).to(device)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.01, momentum=0.9)
    state = tuple(torch.zeros(64, 128, device=device) for _ in range(2))  # HOLDER: state
    for _ in range(steps):
        chunk = torch.randn(64, 3, 32, device=device)
        features, state = encoder(chunk, state)
        loss = nn.functional.cross_entropy(
            head(features.detach()), torch.randint(0, 10, (64,), device=device)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
