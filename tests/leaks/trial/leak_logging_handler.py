"""A logging handler that keeps its records until it is flushed: their exc_info holds every frame."""

import logging
import logging.handlers

import torch
from torch import nn


class NonFiniteError(ValueError):
    pass


def check(model, batch):
    activations = model(batch)  # LEAK: traceback
    if len(activations) < 128:
        raise NonFiniteError("too few activations are finite")
    return activations


def train(steps, device, log):
    model = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 256)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        batch = torch.randn(96, 64, device=device)
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        try:
            with torch.no_grad():
                check(model, batch)
        except NonFiniteError:
            log.warning("step %d", step, exc_info=True)


def main(steps, device):
    log = logging.getLogger("trial")
    log.propagate = False
    never = logging.CRITICAL + 1
    handler = logging.handlers.MemoryHandler(100_000, never, flushOnClose=False)  # HOLDER: buffer
    log.addHandler(handler)
    try:
        train(steps, device, log)
    finally:
        log.removeHandler(handler)
        handler.close()
