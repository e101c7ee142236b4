"""A trace with the operators of torch.profiler and the memory of the same steps, for ui.perfetto.dev."""

import gzip
import json
from pathlib import Path

import torch

import vramscope
from vramscope.integrations.torch_profiler import trace_handler

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512))
optimizer = torch.optim.AdamW(net.parameters())
recorder = vramscope.record("traces/profiled", device="simulated", quiet=True)
profile = torch.profiler.profile(
    activities=[torch.profiler.ProfilerActivity.CPU],
    schedule=torch.profiler.schedule(wait=2, warmup=1, active=2, repeat=1),
    on_trace_ready=trace_handler(recorder, "traces/both"),
)
with recorder, profile as profiler:
    for _ in range(8):
        net(torch.randn(64, 512)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        recorder.step()
        profiler.step()

(file,) = Path("traces/both").iterdir()
rows = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
ours = [row for row in rows if row["name"] == "process_name" and "vramscope" in row["args"]["name"]]
steps = [row["name"] for row in rows if row.get("pid") == ours[0]["pid"] and row["name"].startswith("step")]
print(f"{file}: {ours[0]['args']['name']}, {', '.join(steps)}")
print(f"counters: {', '.join(sorted({row['name'] for row in rows if row['ph'] == 'C'}))}")
