"""Measures what a scrape of metrics costs the training process: ``python benchmarks/scrape.py [DEVICE]``.

The training stands still while another process scrapes, so the CPU time that this process takes meanwhile is
what the scrape costs, wherever it is spent; at worst a step waits for all of it (Python's lock). After 20
steps there is a scrape that also works on the events that have waited, which the recorder's own thread would
otherwise do a moment later; then, in random order, the scrape alone and two requests that scrape nothing.
The scrape's cost is the difference within such a round, and the difference of the two empty requests is the
noise. The share is that of 15 s, the usual interval of Prometheus; first steps, and after 100,000.
"""

import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import nn

import vramscope
from vramscope.integrations.prometheus import serve_recorder

ROUNDS, STEPS, INTERVAL_S = 24, 20, 15.0
LONG = 100_000
MOST_SHARE = 0.001
CLIENT = """
import sys
from urllib.request import urlopen
for line in sys.stdin:
    url = line.strip()
    print(len(urlopen(url).read()) if url else 0, flush=True)
"""


@contextmanager
def scraping() -> Iterator[Callable[[str], float]]:
    """Start a process that scrapes; yield what asks it to, and returns the CPU ms that this takes here."""
    command = [sys.executable, "-c", CLIENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:

        def asked(address: str) -> float:
            begin = time.process_time()
            print(address, file=client.stdin, flush=True)
            client.stdout.readline()
            return 1e3 * (time.process_time() - begin)

        asked("")  # the client imports what it needs
        yield asked


def rounds(asked: Callable[[str], float], url: str, train: Callable[[], None]) -> dict[str, list[float]]:
    """The cost of each round in CPU ms, by what was asked."""
    found: dict[str, list[float]] = {"scrape that reads events": [], "scrape": [], "noise": []}
    shuffled = random.Random(0)
    for _ in range(ROUNDS):
        train()
        reading = asked(url)
        order = ["scrape", "nothing", "nothing again"]
        shuffled.shuffle(order)
        cost = {name: asked(url if name == "scrape" else "") for name in order}
        found["scrape that reads events"].append(reading - cost["nothing"])
        found["scrape"].append(cost["scrape"] - cost["nothing"])
        found["noise"].append(cost["nothing again"] - cost["nothing"])
    return found


def main() -> None:
    """Train, scrape, and print a table."""
    device = sys.argv[1] if len(sys.argv) > 1 else "simulated"
    torch.set_num_threads(1)
    torch.backends.cudnn.enabled = False
    where = "cuda" if device == "cuda" else "cpu"
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(8))).to(where)
    optimizer = torch.optim.AdamW(model.parameters())

    def train() -> None:
        for _ in range(STEPS):
            model(torch.randn(32, 64, device=where)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    print(f"{device} device, {ROUNDS} rounds of {STEPS} steps; CPU time\n")
    print(f"| steps before | what | median ms | quarters | most | share of {INTERVAL_S:.0f} s |")
    print("| ---: | --- | ---: | ---: | ---: | ---: |")
    shares = []
    with tempfile.TemporaryDirectory() as folder:
        recorder = vramscope.record(Path(folder) / "run", device=device, quiet=True)
        metrics = serve_recorder(recorder, port=0)
        with scraping() as asked, recorder:
            for n_before in (0, LONG):
                for what, costs in rounds(asked, metrics.url, train).items():
                    low, middle, high = statistics.quantiles(costs, n=4)
                    share = middle / 1e3 / INTERVAL_S
                    shares += [share] * (what == "scrape")
                    spread = f"{low:.2f} to {high:.2f} | {max(costs):.2f}"
                    print(f"| {n_before:,} | {what} | {middle:.2f} | {spread} | {share:.4%} |", flush=True)
                pretend_steps(recorder)
        metrics.close()
    words = "within" if max(shares) <= MOST_SHARE else "ABOVE"
    print(f"\nA scrape takes {max(shares):.4%} of the time at most: {words} {MOST_SHARE:.1%}.")


def pretend_steps(recorder: vramscope.Recorder) -> None:
    """Have the recorder believe that 100,000 more steps have ended before its last one."""
    for course in recorder._pipeline.summary._courses.values():
        last = course._settled.last
        course._settled.add(last.rows(np.zeros(LONG, "i8")))


if __name__ == "__main__":
    main()
