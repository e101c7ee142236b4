"""Trains a small model and records it to a URL: ``training.py URL N_STEPS PAUSE_S [wait]``.

Prints ``step N`` after each step, and ``losses …`` at the end. With ``wait`` it goes on only when its input
has a line, in the middle of the steps.
"""

import sys
import time

import torch

import vramscope

url, n_steps, pause_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
optimizer = torch.optim.AdamW(model.parameters())
losses = []
recorder = vramscope.record(url, device="simulated", max_size="16 MiB")
with recorder:
    for step in range(n_steps):
        loss = model(torch.randn(32, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        time.sleep(pause_s)
        print("step", step, flush=True)
        if step == n_steps // 2 and "wait" in sys.argv:
            sys.stdin.readline()
print("losses", hash(tuple(losses)), flush=True)
print("spool", recorder.directory, flush=True)
