"""A parallel map over forked processes with a progress bar, and a message while something is read."""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Timer
from typing import Any, TypeVar

Input = TypeVar("Input")
Output = TypeVar("Output")
Say = Callable[[Any, Any], str]
"""Returns a progress message from an input and its output."""

_PATIENCE_S = 5.0
"""The time after which progress lines are printed if stderr is not a terminal."""
_BAR_WIDTH = 12
"""The width of the bar; with the best result so far, the line must fit into 80 columns."""
_work: list[tuple[Callable[[Any], Any], Sequence[Any]]] = []
"""The work for forked children, which inherit it: only the index of an input is sent to them."""
_SILENT_S = 1.0


def crew(
    work: Callable[[Input], Output], inputs: Sequence[Input], words: str, say: Say = lambda *_: ""
) -> Iterator[Output]:
    """Yield ``map(work, inputs)``, computed on all cores; Ctrl-C ends all processes.

    Progress goes to stderr: a bar on a terminal, else a line per result after some seconds.
    """
    n_workers = min(len(inputs), _n_cores())
    if n_workers < 2 or "fork" not in multiprocessing.get_all_start_methods():
        yield from _watched(map(work, inputs), inputs, words, say)
        return
    _work.append((work, inputs))
    try:
        with multiprocessing.get_context("fork").Pool(n_workers, _leave_ctrl_c_to_the_parent) as pool:
            yield from _watched(pool.imap(_one, range(len(inputs))), inputs, words, say)
    finally:
        _work.pop()


def _leave_ctrl_c_to_the_parent() -> None:
    """Ignore Ctrl-C in a child; the parent ends it. A traceback from each child would hide its message."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _one(number: int) -> Any:
    work, inputs = _work[-1]
    return work(inputs[number])


def _n_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _watched(results: Iterator[Output], inputs: Sequence[Input], words: str, say: Say) -> Iterator[Output]:
    if sys.stderr.isatty():
        yield from _with_bar(results, inputs, words, say)
        return
    start = time.monotonic()
    for number, (given, result) in enumerate(zip(inputs, results, strict=True), start=1):
        if time.monotonic() - start > _PATIENCE_S:
            print(f"{words}: {number} of {len(inputs)}  {say(given, result)}", file=sys.stderr, flush=True)
        yield result


def _with_bar(results: Iterator[Output], inputs: Sequence[Input], words: str, say: Say) -> Iterator[Output]:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(words), BarColumn(_BAR_WIDTH), MofNCompleteColumn(), TimeElapsedColumn())
    message = TextColumn("{task.description}")
    with Progress(*columns, message, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(inputs))
        for given, result in zip(inputs, results, strict=True):
            progress.update(task, advance=1, description=escape(say(given, result)))
            yield result


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
    timer = Timer(_SILENT_S, display.start)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # it may be starting the display this moment
        display.stop()
