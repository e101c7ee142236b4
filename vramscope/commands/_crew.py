"""The same work for many inputs, on all cores."""

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

Input = TypeVar("Input")
Output = TypeVar("Output")

_work: list[tuple[Callable[[Any], Any], Sequence[Any]]] = []
"""What forked children find: nothing has to be sent to them but a number."""


def crew(work: Callable[[Input], Output], inputs: Sequence[Input], words: str) -> Iterator[Output]:
    """``map(work, inputs)``, with a bar on stderr where a person watches. Ctrl-C ends it all."""
    n_workers = min(len(inputs), _n_cores())
    if n_workers < 2 or "fork" not in multiprocessing.get_all_start_methods():
        yield from _watched(map(work, inputs), len(inputs), words)
        return
    _work.append((work, inputs))
    try:
        with multiprocessing.get_context("fork").Pool(n_workers) as pool:
            yield from _watched(pool.imap(_one, range(len(inputs))), len(inputs), words)
    finally:
        _work.pop()


def _one(number: int) -> Any:
    work, inputs = _work[-1]
    return work(inputs[number])


def _n_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _watched(results: Iterator[Output], total: int, words: str) -> Iterator[Output]:
    if not sys.stderr.isatty():
        yield from results
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(words, total=total)
        for result in results:
            progress.advance(task)
            yield result
