"""Words of the command line, one a file: ``COMMAND = Command(...)``."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """One word of the command line. Modules import their work inside ``run``: ``--help`` must be instant."""

    name: str
    help: str
    arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]
    """Returns the exit code: 0 fine, 1 failed, 2 asked wrongly, 3 a check found what it forbids."""
