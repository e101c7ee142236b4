"""A trainer that gathers what every step returns, images too, until its second long epoch ends."""

import torch
from torch import nn


def train_step(net, images):
    logits = net(images)
    return {"loss": logits.square().mean(), "images": images}


def run_epoch(net, optimizer, n_batches, device):
    results = []  # HOLDER: results
    for _ in range(n_batches):
        given = torch.randn(64, 256, device=device)  # LEAK: kept_output
        result = train_step(net, given)
        optimizer.zero_grad()
        result["loss"].backward()
        optimizer.step()
        kept = {name: value.detach() for name, value in result.items()}
        results.append(kept)  # KEPT EDIT: drop it after use, in results
    return sum(float(each["loss"]) for each in results) / len(results)


def main(steps, device):
    net = nn.Sequential(nn.Linear(256, 64), nn.Tanh(), nn.Linear(64, 8)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        run_epoch(net, optimizer, 2 * steps, device)
