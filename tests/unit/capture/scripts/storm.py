"""Trains while a signal handler raises KeyboardInterrupt every few milliseconds; says what it counted.

    storm.py FOLDER DEVICE SECONDS INTERVAL_S WHERE…

WHERE is ``inside`` (one block around all) or ``blocks`` (a block per step), recorded to ``FOLDER/WHERE``.
One line of JSON each.
"""

import faulthandler
import gc
import json
import signal
import sys
import time

import torch
from torch import nn

import vramscope

folder, device, seconds, interval_s, *wheres = sys.argv[1:]
torch.backends.cudnn.enabled = False
torch.backends.cuda.enable_cudnn_sdp(False)
torch.set_num_threads(1)
PLACE = "cuda" if device == "cuda" else "cpu"
counts = {"raised": 0, "caught": 0}
unraisable = []


def interrupt(_, frame):
    """Raises anywhere within a step, also in torch's code and ours; never in the loop around it."""
    while frame is not None:
        if frame.f_code in (train.__code__, block.__code__):
            counts["raised"] += 1
            raise KeyboardInterrupt
        frame = frame.f_back


def train(kept):
    torch.set_grad_enabled(True)  # an interrupted no_grad of torch's own leaves it off
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)).to(PLACE)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    for _ in range(4):
        model(torch.ones(4, 16, device=PLACE)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(torch.ones(64, device=PLACE))
        del kept[:-4]


def in_use():
    """Bytes of what lives now; the recording is asked for the same moment, by its mark."""
    gc.collect()
    if PLACE == "cuda":
        return torch.cuda.memory_stats()["requested_bytes.all.current"]
    found = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, nn.Parameter):
            storage = thing.untyped_storage()
            found[storage._cdata] = storage.nbytes()
    return sum(found.values())


def storm(step):
    ends_s = time.monotonic() + float(seconds)
    signal.setitimer(signal.ITIMER_REAL, float(interval_s), float(interval_s))
    while time.monotonic() < ends_s:
        try:
            step()
        except KeyboardInterrupt:  # noqa: PERF203
            counts["caught"] += 1
    signal.setitimer(signal.ITIMER_REAL, 0)


def block():
    with recorder:
        train(kept)


kept = []
train(kept)  # torch imports much at the first step
faulthandler.dump_traceback_later(180, exit=True)
sys.unraisablehook = unraisable.append
signal.signal(signal.SIGALRM, interrupt)
for where in wheres:
    recorder = vramscope.record(f"{folder}/{where}", device=device, quiet=True)
    counts.update(raised=0, caught=0)
    unraisable.clear()
    if where == "inside":
        with recorder as opened:
            storm(lambda: train(kept))
            truth = in_use()
            opened.mark("truth")
    else:
        storm(block)
        with recorder as opened:
            train(kept)
            truth = in_use()
            opened.mark("truth")

    swallowed = sum(
        issubclass(each.exc_type, KeyboardInterrupt) and "vramscope" in repr(each.object)
        for each in unraisable
    )
    print(json.dumps(counts | {"swallowed": swallowed, "in_use": truth}), flush=True)
