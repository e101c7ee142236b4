"""The best weights are copied now and then; the last three copies are kept."""

import torch
from torch import nn


def main(steps, device):
    model = nn.Linear(256, 256).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    saved = []
    for step in range(steps):
        loss = model(torch.randn(64, 256, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 4 == 0:
            saved = [*saved, {name: value.clone() for name, value in model.state_dict().items()}][-3:]
