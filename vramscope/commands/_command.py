"""Runs any command with every Python process below it recorded, by a start-up hook on their module path."""

import os
import shutil
import socket
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from vramscope.errors import UsageError

_SCRIPTS = (".py", ".pyw", ".pyc")


def found(program: Sequence[str]) -> list[str] | None:
    """Return the command line if it names a command; None for a Python script, which runs in this process.

    *program* follows the options of ``vramscope run``; a leading ``--`` is left out.
    """
    given = list(program[1:] if program[:1] == ["--"] else program)
    if not given or given[0].endswith(_SCRIPTS):
        return None
    path = Path(given[0])
    if path.is_file() and not (os.access(path, os.X_OK) and _is_program(path)):
        return None
    return given if shutil.which(given[0]) else None


def launcher(program: Sequence[str]) -> list[str] | None:
    """Return the command line of a module that starts the ranks of a training, None for any other module."""
    from vramscope.recorder.from_outside.below_a_command import is_no_training

    command = [sys.executable, "-m", *program]
    return command if is_no_training(command) else None


def _is_program(path: Path) -> bool:
    """Whether the system itself can start the file: a binary, or a script that names its interpreter.

    The launcher of another environment (``env/bin/accelerate``) is a script that only its own Python runs.
    """
    with path.open("rb") as file:
        start = file.read(256)
    return b"\0" in start or start.startswith(b"#!")


def run(command: Sequence[str], args: Namespace) -> int:
    """Replace this process by the command, whose exit code and signals are then its own.

    Raises UsageError if an option is invalid, or the command cannot be run.
    """
    from vramscope.recorder import record
    from vramscope.recorder.configured import completed

    os.environ.update(_variables(command, args))
    record()  # checks the options; nothing is recorded here
    if not completed({}).quiet:
        place = os.environ["VRAMSCOPE_DIRECTORY"]
        then = "waits for `vramscope attach PID`, which records it" if args.detached else "is recorded"
        print(
            f"vramscope: every Python process of `{command[0]}` that imports torch {then} to {place}",
            file=sys.stderr,
        )
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvp(command[0], list(command))  # noqa: S606 -- what the user asked for
    except OSError as error:
        raise UsageError(f"{command[0]}: cannot be run: {error.strerror}") from None


def _variables(command: Sequence[str], args: Namespace) -> Mapping[str, str]:
    """What the processes below read: the options, the run, and the folder of the start-up hook."""
    import vramscope.recorder.start_up as hook
    from vramscope.recorder.configured import DETACHED, PREFIX, RUN, completed

    place = args.output or completed({}).directory or Path("traces") / _name(command)
    home = str(Path(hook.__file__).parent)
    places = [home, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    detached = {DETACHED: "1"} if args.detached else {}
    return (
        options_of(args)
        | detached
        | {
            f"{PREFIX}DIRECTORY": absolute(str(place)),
            RUN: f"{os.getpid()}-{time.time():.2f}@{socket.gethostname()}",
            "PYTHONPATH": os.pathsep.join(places),
        }
    )


def options_of(args: Namespace) -> dict[str, str]:
    """The options of ``vramscope run`` as variables of the environment, without those that are not given."""
    from vramscope.recorder.configured import PREFIX

    options = {
        "DIRECTORY": None if args.output is None else absolute(args.output),
        "MODE": args.mode,
        "EVERY": args.every,
        "DEVICE": args.device,
        "CAPACITY": args.capacity,
        "MAX_SIZE": args.max_size,
        "ALERT_AT": args.alert_at,
        "QUIET": "true" if args.quiet else None,
    }
    return {PREFIX + name: value for name, value in options.items() if value is not None}


def absolute(place: str) -> str:
    """The place of a run for processes in other folders: a URL as it is."""
    return place if "://" in place else os.path.abspath(place)  # noqa: PTH100 -- keeps links


def _name(command: Sequence[str]) -> str:
    """Name of the run: that of the first Python script of the command, or else the command's."""
    scripts = [word for word in command if word.endswith(".py")]
    return f"{Path((scripts or command)[0]).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
