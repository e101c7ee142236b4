"""Evaluation in a thread beside training; its results are fetched a few steps later."""

from collections import deque
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn


def evaluate(model, batch):
    with torch.no_grad():
        return model(batch).softmax(dim=1)


def main(steps, device):
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 256)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    held_out = torch.randn(96, 64, device=device)
    waiting, scores = deque(), []
    with ThreadPoolExecutor(max_workers=1) as pool:
        for _ in range(steps):
            loss = model(torch.randn(64, 64, device=device)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            waiting.append(pool.submit(evaluate, model, held_out))
            if len(waiting) > 3:
                scores.append(waiting.popleft().result().max().item())
