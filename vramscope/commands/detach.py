"""End a recording that ``vramscope attach`` began; the process goes on."""

from argparse import Namespace

from vramscope.commands import described


def run(args: Namespace) -> int:
    """Detach from the processes; return the exit code."""
    from vramscope.commands._attached_process import WAIT_S, answer_of

    wait_s = WAIT_S if args.wait is None else args.wait
    for pid in args.pid:
        print(f"process {pid}: {answer_of(pid, {'do': 'detach'}, wait_s)}")
    return 0


COMMAND = described("detach", run)
