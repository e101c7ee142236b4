"""Record a program, or every program that a command starts, that does not use vramscope."""

import os
import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from vramscope.commands import described

if TYPE_CHECKING:
    from vramscope.recorder import Recorder
    from vramscope.recorder.from_outside.listener import Detached


def run(args: Namespace) -> int:
    """Run and record a program; return the exit code."""
    from vramscope.commands import _command
    from vramscope.commands._when_torch import WhenTorch
    from vramscope.prediction import script

    command = (_command.launcher if args.is_module else _command.found)(args.program)
    if command is not None:
        return _command.run(command, args)
    program, given = script.chosen(args.program, "run", is_module=args.is_module)
    recorder = None if args.detached else _recorder(args)
    # The program may set environment variables before it imports torch, so torch is not imported here.
    recorded = WhenTorch(_detached(args) if recorder is None else recorder)
    try:
        with recorded:
            script.execute(program, given[1:])
    except SystemExit:
        raise
    except BaseException as error:  # like Python itself, with the program's frames only
        if error is recorded.refused:
            raise
        own = script.own_traceback(error, program)
        sys.excepthook(type(error), error.with_traceback(own), own)
        if isinstance(error, KeyboardInterrupt):
            # The signal ends this process as it would end the program alone: a shell stops its loop.
            sys.excepthook = _said
            error.is_said = True  # type: ignore[attr-defined]
            raise
        return 1
    if recorder is not None and "torch" not in sys.modules:
        print(
            f"vramscope: the program did not import torch; nothing was recorded to {recorder.directory}",
            file=sys.stderr,
        )
    return 0


def _said(*_: object) -> None:
    """Print nothing: the program's traceback is printed already."""


def _recorder(args: Namespace) -> "Recorder":
    from vramscope.recorder import record

    # The option as ``record`` takes it; what is configured where it is not given.
    return record(
        args.output,
        device=args.device,
        mode=args.mode,
        every=int(args.every) if args.every and args.every.isdecimal() else args.every,
        capacity=args.capacity,
        quiet=args.quiet,
        alert_at=args.alert_at,
        **{} if args.max_size is None else {"max_size": None if args.max_size == "none" else args.max_size},
    )


def _detached(args: Namespace) -> "Detached":
    """Let the program be attached to; the options become those of the environment, which attaching reads."""
    from vramscope.commands import _command
    from vramscope.recorder import record
    from vramscope.recorder.from_outside.listener import Detached

    os.environ.update(_command.options_of(args))
    record()  # checks the options; nothing is recorded here
    return Detached()


COMMAND = described("run", run)
