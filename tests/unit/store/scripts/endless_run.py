"""Trains for ever into a capped trace; says after each telling how much was handed over."""

import sys
import time
from pathlib import Path
from types import MappingProxyType

from endless_program import Program, now

from vramscope.model.device import Device
from vramscope.record import _process
from vramscope.store.writer import Writer


class _Nobody:
    """What the recorder asks of a source."""

    torch = ""
    settings = MappingProxyType({})


directory, max_bytes, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
writer = Writer(
    directory,
    source="simulated",
    process=_process(_Nobody()),
    devices=[Device()],
    started_ns=time.time_ns(),
    max_bytes=max_bytes,
)
program = Program([writer], seed, times=now())
n_steps = 0
while True:
    program.run(5, tell_every=0)
    program.tell()
    n_steps += 5
    if n_steps % 100 == 0:
        writer.thin()
    print(n_steps, program.n_events, flush=True)
