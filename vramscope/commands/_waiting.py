"""A progress message on stderr while something takes longer than a second."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

_PATIENCE_S = 1.0


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Show *text* with a running clock after one second, only on a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    progress.add_task(escape(text), total=None)
    timer = Timer(_PATIENCE_S, progress.start)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # it may be starting the display this moment
        progress.stop()
