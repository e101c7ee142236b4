"""Trains for ever into a capped trace, or until a step at which it waits; reports what was handed over."""

import signal
import sys
import time
from pathlib import Path

from endless_program import Program, now

from vramscope.model.device import Device
from vramscope.recorder.process import this_process
from vramscope.store.write.writer import Writer

directory, max_bytes, seed, waits_at = Path(sys.argv[1]), *map(int, sys.argv[2:5])
writer = Writer(
    directory,
    source="simulated",
    process=this_process("", {}),
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
        writer.compact()
    print(n_steps, program.n_events, flush=True)
    if n_steps == waits_at:
        signal.pause()
