"""End a recording that ``vramscope attach`` began; the process goes on."""

from argparse import ArgumentParser, Namespace

from vramscope.commands import Command
from vramscope.commands._wait import add_wait


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``vramscope detach`` to *parser*."""
    parser.add_argument("pid", type=int, nargs="+", metavar="PID", help="the processes")
    add_wait(parser)


def run(args: Namespace) -> int:
    """Detach from the processes; return the exit code."""
    from vramscope.commands._attached_process import WAIT_S, answer_of

    wait_s = WAIT_S if args.wait is None else args.wait
    for pid in args.pid:
        print(f"process {pid}: {answer_of(pid, {'do': 'detach'}, wait_s)}")
    return 0


COMMAND = Command("detach", "end a recording that `vramscope attach` began", arguments, run, "record")
