"""Train and record to a path or URL for some seconds; print the CPU time of the training's thread per step.

python benchmarks/_upload_child.py PLACE SECONDS
"""

import json
import statistics
import sys
import time

import torch

import vramscope

place, seconds = sys.argv[1], float(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(12)))
optimizer = torch.optim.AdamW(model.parameters())
steps_s = []
recorder = vramscope.record(place, device="simulated", max_size="64 MiB", quiet=False)
end = time.monotonic() + seconds
with recorder:
    while time.monotonic() < end:
        began = time.thread_time()
        loss = model(torch.randn(256, 256)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps_s.append(time.thread_time() - began)
(recording,) = recorder.load().recordings
print(
    json.dumps(
        {
            "step_ms": 1000 * statistics.median(steps_s[20:]),
            "n_steps": len(steps_s),
            "n_events": len(recording.trace),
            "spool": str(recorder.directory),
        }
    )
)
