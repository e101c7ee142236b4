"""Progress messages on stderr while something takes longer than a second."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

_PATIENCE_S = 1.0


def progress(text: str) -> None:
    """Show how far a long command is: in place on a terminal, else as a line."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Show *text* after one second, only on a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.markup import escape

    display = Console(stderr=True).status(escape(text))
    timer = Timer(_PATIENCE_S, display.start)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # it may be starting the display this moment
        display.stop()
