"""All runs and ranks of a folder in a terminal, renewed while they run."""

from argparse import Namespace
from typing import TYPE_CHECKING

from vramscope.commands import described

if TYPE_CHECKING:
    from threading import Event

    from vramscope.fleet.standings import Standings

_DRAW_EVERY_S = 0.5
_LOOK_EVERY_S = 1.0
_LOOK_ENDS_S = 3.0


def run(args: Namespace) -> int:
    """Show the table until a key ends it; return the exit code."""
    import sys
    from pathlib import Path

    from vramscope.errors import UsageError
    from vramscope.fleet.standings import Standings
    from vramscope.remote import local_path

    place = local_path(args.path)
    if place is None:
        raise UsageError(f"{args.path}: top shows a folder of this machine; `vramscope ranks` reads a URL")
    standings = Standings(Path(place))
    if args.once or not sys.stdout.isatty():
        standings.look()
        _print(standings)
    else:
        _show(standings)
    return 0


def _print(standings: "Standings") -> None:
    import time

    from vramscope.commands import _top_page as page
    from vramscope.commands._document import Grid, Text, print_terminal

    rows = page.ordered(standings.rows(), page.TopState())
    now_ns = time.time_ns()
    titles = tuple(column.title for column in page.COLUMNS)
    align = "".join("l" if column.is_words else "r" for column in page.COLUMNS)
    grid = Grid(titles, tuple(page.cells(row, now_ns) for row in rows), align)
    print_terminal([grid if rows else Text("no run here yet")])


def _show(standings: "Standings") -> None:
    import os
    import threading

    # What is watched may train on the same cores.
    os.nice(10)
    is_over = threading.Event()
    looking = threading.Thread(target=_look, args=(standings, is_over), name="vramscope-top", daemon=True)
    looking.start()
    try:
        _draw(standings)
    finally:
        is_over.set()
        # A thread that is still within a library in C++ can abort the process as it ends: SIGABRT, seen once.
        looking.join(_LOOK_ENDS_S)


def _look(standings: "Standings", is_over: "Event") -> None:
    import time

    pause_s = 0.0
    while not is_over.wait(pause_s):
        began_s = time.thread_time()
        standings.look()
        pause_s = max(_LOOK_EVERY_S, 5 * (time.thread_time() - began_s))


def _draw(standings: "Standings") -> None:
    import time

    from rich.console import Console
    from rich.live import Live

    from vramscope.commands import _top_page as page
    from vramscope.commands._top_page import Keys

    console, view = Console(highlight=False), page.TopState()
    with Keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            rows, size = standings.rows(), (console.width, console.height)
            live.update(page.frame(rows, view, size, time.time_ns()), refresh=True)
            for key in keys.read(_DRAW_EVERY_S):
                if key in ("q", "\x1b"):
                    return
                view.press(key, len(rows), page.visible_rows(size[1]))


COMMAND = described("top", run)
