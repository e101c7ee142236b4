"""A thread that prepares up to four batches ahead, in a bounded queue, and futures that are waited for."""

import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn


def prepare(ready, steps, device):
    for _ in range(steps):
        ready.put(torch.randn(96, 256, device=device))
    ready.put(None)


def main(steps, device):
    ready = queue.Queue(maxsize=4)
    threading.Thread(target=prepare, args=(ready, steps, device), daemon=True).start()
    model = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 256)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    with ThreadPoolExecutor(1) as pool:
        while (batch := ready.get()) is not None:
            out = model(batch)
            loss = (out - batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            pool.submit(lambda values: values.mean().item(), out.detach()).result()
