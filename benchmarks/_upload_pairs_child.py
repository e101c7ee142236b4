"""Train with blocks of steps recorded in turn to two directories and a URL; print the CPU time of each block.

python benchmarks/_upload_pairs_child.py DIRECTORY URL SECONDS

All blocks are of one process and one model, so nothing differs between them but the recorder: neither the
layout of memory nor a busy hour of the machine. The order within a round is random.
"""

import json
import random
import sys
import time
from pathlib import Path

import torch

import vramscope

N_STEPS = 8
N_WARM_UP = 5

directory, url, seconds = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(12)))
optimizer = torch.optim.AdamW(model.parameters())
places = {"directory": str(directory / "a"), "another directory": str(directory / "b"), "store": url}
recorders = {
    name: vramscope.record(place, device="simulated", max_size="64 MiB") for name, place in places.items()
}


def block(recorder: vramscope.Recorder) -> tuple[float, float]:
    """CPU seconds of this thread in the steps, and of the whole process from entering to leaving."""
    before_s = time.process_time()
    with recorder:
        began_s = time.thread_time()
        for _ in range(N_STEPS):
            loss = model(torch.randn(128, 128)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        of_thread_s = time.thread_time() - began_s
    return of_thread_s, time.process_time() - before_s


shuffled = random.Random(0)
rounds: list[dict[str, tuple[float, float]]] = []
end_s = time.monotonic() + seconds
while time.monotonic() < end_s:
    names = list(places)
    shuffled.shuffle(names)
    rounds.append({name: block(recorders[name]) for name in names})
print(
    json.dumps(
        {
            "rounds": rounds[N_WARM_UP:],
            "n_steps": N_STEPS,
            "spool": str(recorders["store"].directory),
            "n_events": sum(len(each.trace) for each in recorders["store"].load().recordings),
        }
    )
)
