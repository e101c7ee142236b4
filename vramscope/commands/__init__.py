"""The subcommands of the command line: one per module, ``COMMAND = Command(...)``."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand. Modules import what they need inside ``run``, so that ``--help`` is instant."""

    name: str
    help: str
    arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]
    """Returns the exit code: 0 success, 1 failure, 2 usage error, 3 a limit of ``check`` is exceeded."""
    group: str = "others"
    """The heading in ``vramscope --help``: ``record``, ``understand``, ``foresee`` or ``share``."""
