"""Logits are handed to a thread that writes them; the thread has died, and the queue fills."""

import queue
import threading

import torch
from torch import nn


class AsyncWriter:
    def __init__(self):
        self.inbox = queue.Queue()  # HOLDER: inbox
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self):
        while True:
            step, _ = self.inbox.get()
            if step >= 2:
                return  # the disk is full

    def write(self, step, logits):
        self.inbox.put((step, logits))  # KEPT


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(64, 256)
        self.head = nn.Linear(256, 256)

    def forward(self, x):
        return self.head(self.body(x).relu())  # LEAK: kept_output


def main(steps, device):
    model, writer = Model().to(device), AsyncWriter()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        logits = model(torch.randn(96, 64, device=device))
        loss = logits.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        writer.write(step, logits.detach())
