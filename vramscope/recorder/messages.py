"""What a recorder tells its user: on stderr, as a warning, or through the program's own log."""

import sys
import warnings
from collections.abc import Callable

from vramscope.capture.undisturbed import Guarded

_PROGRAMS_STDERR = Guarded(lambda _: None)
"""The program may have closed it, or put an object of its own there, which raises whatever it likes."""


class Messages:
    """Where one recorder says what happens to it."""

    def __init__(self, *, quiet: bool) -> None:
        """Say nothing but what is said always if *quiet*."""
        self.report: Callable[[str], None] | None = None
        """Takes a sentence in place of stderr, for the program's own log."""
        self._quiet = quiet

    def say(self, text: str, *, always: bool = False) -> None:
        """Print one line on stderr."""
        if always or not self._quiet:
            with _PROGRAMS_STDERR:
                sys.stderr.write(f"vramscope: {text}\n")

    def tell(self, text: str) -> None:
        """Pass what an analysis says of the running program to the program's own log, or print it."""
        if self.report is None:
            self.say(text, always=True)
        else:
            self.report(text)


def warn(text: str) -> None:
    """Warn once, whatever the user's filters make of a warning."""
    with _PROGRAMS_STDERR:
        try:
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        except Exception:  # noqa: BLE001 -- the user's filters make an error of it, or a hook of theirs raises
            sys.stderr.write(f"{text}\n")
