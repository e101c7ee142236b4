"""A training loop of one's own: its steps are marked by the handler, its peaks go where it says."""

import torch

from vramscope.integrations.loop import VramscopeHandler

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512))
optimizer = torch.optim.AdamW(net.parameters())


def log(scalars, step):
    print(f"step {step}: {scalars['vram/peak_allocated_bytes']:,} bytes at the peak", flush=True)


with VramscopeHandler("traces/own-loop", log=log, every=5, device="simulated", quiet=True) as handler:
    for _ in range(20):
        net(torch.randn(64, 512)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        handler.step()
        if handler.n_done == 10:
            with handler.phase("eval"), torch.no_grad():
                net(torch.randn(512, 512))
