"""Raises KeyboardInterrupt once at every place where Python may run a signal handler within vramscope.

    interrupted_everywhere.py FOLDER DEVICE WHAT:FIRST:STEP…

WHAT is ``block`` (entering and leaving a block) or ``train`` (a training step in a block), recorded to
``FOLDER/WHAT``. Every pass over it is interrupted at one place: the FIRST one, then each STEP places later,
until a pass ends uninterrupted. The
places are those after calls, at the beginning of functions and at jumps back, in vramscope's frames on the
main thread and in what they call. One is left out, the beginning of ``__exit__``: Python leaves the block
there without having called anything. After each pass nothing of vramscope may remain in the program. A JSON
line for each WHAT reports the number of places, what remained where, and the bytes in use at the end.
"""

import collections
import dis
import faulthandler
import functools
import gc
import json
import sys
import threading
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils import _python_dispatch

import vramscope.recorder
from vramscope.capture.hooks.open_phases import state

folder, device, *passes = sys.argv[1:]
torch.backends.cudnn.enabled = False
torch.backends.cuda.enable_cudnn_sdp(False)
torch.set_num_threads(1)
PLACE = "cuda" if device == "cuda" else "cpu"
OURS = str(Path(vramscope.__file__).parent)
RECORD_HISTORY = torch.cuda.memory._record_memory_history
sys.unraisablehook = lambda _: None  # Python discards an interrupt within a weak reference's callback
faulthandler.dump_traceback_later(270, exit=True)
kept = collections.deque(maxlen=4)


@functools.cache
def places(code):
    """The offsets of instructions before which the interpreter may run a signal handler."""
    found, before = set(), ""
    for each in dis.get_instructions(code):
        if before.startswith(("CALL", "RESUME")) or each.is_jump_target:
            found.add(each.offset)
        before = each.opname
    if code is vramscope.recorder.Recorder.__exit__.__code__:
        found.discard(min(found))
    if code is vramscope.recorder.Recorder.__enter__.__code__:
        # A handler runs at the end of the call, within the ``try``; a trace function after it.
        found -= {each.offset for each in dis.get_instructions(code) if each.opname == "RETURN_VALUE"}
    return found


class Interrupting:
    """A trace function that raises at one place."""

    def __init__(self, number):
        self.left, self.where = number, None

    def __call__(self, frame, _event, _arg):
        outer = frame
        while outer is not None and not outer.f_code.co_filename.startswith(OURS):
            outer = outer.f_back
        if outer is None:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.local

    def local(self, frame, event, _arg):
        if event == "opcode" and frame.f_lasti in places(frame.f_code):
            self.left -= 1
            if not self.left:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
                sys.settrace(None)
                raise KeyboardInterrupt
        return self.local


def train():
    torch.set_grad_enabled(True)  # an interrupted no_grad of torch's own leaves it off
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU()).to(PLACE)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    model(torch.ones(4, 16, device=PLACE)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    kept.append(torch.ones(64, device=PLACE))


def remains():
    """What of vramscope is still in the program after a block."""
    flags = [
        name for name, value in vars(_python_dispatch).items() if name.startswith("_is_in_") and value is True
    ]
    found = {
        "failure": recorder.has_failed,
        "hooks": state.listener is not None,
        "resize_": "resize_" in vars(torch.UntypedStorage),
        "mode": bool(_python_dispatch._get_current_dispatch_mode_stack()),
        f"flags {flags}": bool(flags),
        "interceptor": torch.cuda.memory._record_memory_history is not RECORD_HISTORY,
        "history": PLACE == "cuda" and torch._C._cuda_isHistoryEnabled(),
        # A thread whose start was interrupted before it began has no number.
        "threads": any(t.ident and t.name.startswith("vramscope") for t in threading.enumerate()),
    }
    return [name for name, is_left in found.items() if is_left]


def interrupted(number):
    """Where the pass was interrupted (None: nowhere), and what remained or went wrong."""
    interrupting, is_caught = Interrupting(number), False
    sys.settrace(interrupting)
    try:
        with recorder:
            if what == "train":
                train()
    except KeyboardInterrupt:
        is_caught = True
    finally:
        sys.settrace(None)
    found = remains()
    ends_s = time.monotonic() + 5
    while found and time.monotonic() < ends_s:  # a second interrupted wait may leave work that ends soon
        time.sleep(0.01)
        found = remains()
    if interrupting.where and not is_caught:
        found.append("swallowed")
    return interrupting.where, found


def in_use():
    gc.collect()
    if PLACE == "cuda":
        return torch.cuda.memory_stats()["requested_bytes.all.current"]
    storages = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, nn.Parameter):
            storages[thing.untyped_storage()._cdata] = thing.untyped_storage().nbytes()
    return sum(storages.values())


train()  # torch imports much at the first step
# Every block looks through all objects for tensors: not through torch's own.
gc.collect()
gc.freeze()
gc.get_freeze_count = lambda: 0
for each in passes:
    what, first, step = each.split(":")
    recorder = vramscope.record(f"{folder}/{what}", device=device, quiet=True)
    with recorder:
        train()
    wrong, number = {}, int(first)
    while True:
        where, found = interrupted(number)
        if where is None:
            break
        if found:
            wrong[f"{number}: {where}"] = found
            break
        number += int(step)
    with recorder:
        train()
        truth = in_use()
    print(json.dumps({"places": number, "wrong": wrong, "in_use": truth}), flush=True)
