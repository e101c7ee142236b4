"""The small training that the examples of loggers and metrics share."""

import torch


def train(handler) -> None:
    """Train for twelve steps, which *handler* is given."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512))
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(12):
        net(torch.randn(64, 512)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        handler.step()
