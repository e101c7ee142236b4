"""Keys of a terminal, read one at a time while a page is drawn there."""

import os
import select
import sys
from contextlib import suppress
from types import TracebackType
from typing import Any

_NAMES = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1b[1~": "home",
    "\x1b[4~": "end",
}
_MOST_BYTES = 1024


class Keys:
    """``with Keys() as keys:`` around a loop that asks ``keys.read(wait_s)``; after it all is as before."""

    def __init__(self) -> None:
        """Read stdin, where that is a terminal; otherwise there are no keys."""
        self._file = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._before: Any = None

    def __enter__(self) -> "Keys":
        if self._file is not None:
            import termios
            import tty

            self._before = termios.tcgetattr(self._file)
            tty.setcbreak(self._file)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None and self._before is not None:
            import termios

            with suppress(termios.error):  # a terminal that is gone
                termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)

    def read(self, wait_s: float) -> list[str]:
        """Return the keys that were pressed; waits for the first one for *wait_s* at most."""
        files = [] if self._file is None else [self._file]
        if not select.select(files, [], [], wait_s)[0] or self._file is None:
            return []
        pressed = os.read(self._file, _MOST_BYTES)
        # The end of the input is a terminal that was closed.
        return names_of(pressed.decode(errors="replace")) if pressed else ["q"]


def names_of(pressed: str) -> list[str]:
    """Return the names of keys from what a terminal sends for them: ``up``, ``page down``, ``q``."""
    found = []
    rest = pressed.replace("\x1bO", "\x1b[")  # what arrows are in another mode of the terminal
    while rest:
        sequence = next((known for known in _NAMES if rest.startswith(known)), rest[0])
        found.append(_NAMES.get(sequence, sequence))
        rest = rest[len(sequence) :]
    return found
