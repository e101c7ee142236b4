"""itertools.tee: one copy of the stream is trained on, the other waits for the statistics at the end."""

import itertools

import torch
from torch import nn


def batches(steps, device):
    for _ in range(steps):
        yield torch.randn(64, 512, device=device)  # LEAK: kept_output


def main(steps, device):
    # Of a tee each copy holds what is between them: the one that is read too.
    stream, for_statistics = itertools.tee(batches(steps, device))  # HOLDER: stream KEPT
    model = nn.Linear(512, 16).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in stream:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return sum(float(batch.mean()) for batch in for_statistics)
