"""A loop under torch's profiler with a schedule."""

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule


def main(steps, device):
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    plan = schedule(wait=2, warmup=1, active=3, repeat=2)
    seen = []
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=plan,
        record_shapes=True,
        on_trace_ready=lambda p: seen.append(len(p.events())),
    ) as profiler:
        for _ in range(steps):
            loss = model(torch.randn(96, 64, device=device)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            profiler.step()
