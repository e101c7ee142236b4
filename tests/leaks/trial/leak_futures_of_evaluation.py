"""Evaluation in a pool of threads: the futures are kept, and with them what they gave."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn


def evaluate(model, batch):
    with torch.no_grad():
        return model(batch).softmax(dim=1)  # LEAK: kept_output


def main(steps, device):
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 256)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    held_out = torch.randn(96, 64, device=device)
    futures = []  # HOLDER: futures
    with ThreadPoolExecutor(max_workers=1) as pool:
        for _ in range(steps):
            loss = model(torch.randn(64, 64, device=device)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            futures.append(pool.submit(evaluate, model, held_out))  # KEPT
            futures[-1].result()
