"""Begin to record a process that runs already."""

import os
import sys
from argparse import Namespace

from vramscope.commands import described


def run(args: Namespace) -> int:
    """Attach to the processes, or list those that can be attached to; return the exit code."""
    from vramscope.commands._attached_process import WAIT_S, answer_of
    from vramscope.commands._command import absolute

    if not args.pid:
        return _list()
    options = {"mode": args.mode, "device": args.device, "max_size": args.max_size}
    options["directory"] = None if args.output is None else absolute(args.output)
    given = {name: value for name, value in options.items() if value is not None}
    wait_s = WAIT_S if args.wait is None else args.wait
    for pid in args.pid:
        text = answer_of(pid, {"do": "attach", "options": given}, wait_s)
        print(f"process {pid}: {text}; `vramscope detach {pid}` ends it")
    return 0


def _list() -> int:
    from vramscope.commands._attached_process import command_of
    from vramscope.recorder.from_outside.address import listening

    found = listening(os.getuid())
    for pid in found:
        print(f"{pid:>8}  {command_of(pid)}")
    if not found:
        print("vramscope: no process of this user listens (docs: attach and detach)", file=sys.stderr)
    return 0


COMMAND = described("attach", run)
