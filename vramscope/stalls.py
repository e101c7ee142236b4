"""The threads of vramscope, and which operations of the file system and imports are going on in them.

A disk that hangs (NFS, a full queue, a sleeping drive) lets a write take seconds. What writes the recording
says so here, and what waits for it on a thread of the program looks here.
"""

import os
import sys
import threading
from _thread import get_ident
from collections.abc import Callable
from contextlib import suppress
from itertools import count

LOOK_EVERY_S = 0.1
MOST_LOOKS = 3
"""Looks at which one operation is still going on before it counts as stalled: 0.3 s in all.

They are counted, not timed: a process that is stopped, or gets no processor, waits for no disk.
"""

importing = threading.RLock()
"""Held while a thread of vramscope imports modules: a fork waits for that.

In the child nobody would end the import, and whoever imports one of these modules there, such as a worker of
a data loader, would wait for ever.
"""
_LONGEST_IMPORT_S = 30.0

_numbers = count(1)
_at_disk: dict[int, int] = {}
"""The number of the operation that each thread is in."""
_stalled: set[int] = set()


def own_thread(work: Callable[[], object], name: str) -> threading.Thread:
    """Return a daemon thread that does *work* once it is started.

    Python makes none for a program that has deleted ``sys.stderr``, which is therefore there meanwhile.
    """
    if is_deleted := not hasattr(sys, "stderr"):
        sys.stderr = None
    try:
        return threading.Thread(target=work, name=f"vramscope-{name}", daemon=True)
    finally:
        if is_deleted and getattr(sys, "stderr", 0) is None:
            del sys.stderr


class AtDisk:
    """A block in which the calling thread waits for the file system."""

    __slots__ = ()

    def __enter__(self) -> None:
        """Begin the operation."""
        _at_disk[get_ident()] = next(_numbers)

    def __exit__(self, *_: object) -> None:
        """End the operation."""
        _stalled.discard(_at_disk.pop(get_ident(), 0))


def is_stalled() -> bool:
    """Whether an operation is going on for which somebody waited in vain."""
    return bool(_stalled) and not _stalled.isdisjoint(list(_at_disk.values()))


class Patience:
    """The wait of one thread: it looks every ``LOOK_EVERY_S``."""

    __slots__ = ("_most_looks", "_n_looks")

    def __init__(self, most_looks: int = MOST_LOOKS) -> None:
        """Look *most_looks* times at one operation."""
        self._most_looks = most_looks
        self._n_looks: dict[int, int] = {}

    def is_over(self) -> bool:
        """Look once; returns whether an operation stalls, so that the thread goes on without its end."""
        self._n_looks = {number: self._n_looks.get(number, 0) + 1 for number in list(_at_disk.values())}
        stalled = [number for number, looks in self._n_looks.items() if looks >= self._most_looks]
        _stalled.update(stalled)
        return bool(stalled) or (self._most_looks == MOST_LOOKS and is_stalled())


def _await_imports() -> None:
    # Bounded, as they may wait for a module whose own import forks.
    importing.acquire(timeout=_LONGEST_IMPORT_S)


def _go_on() -> None:
    with suppress(RuntimeError):  # they were not waited for to the end
        importing.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_at_disk.clear)
    _reinit = importing._at_fork_reinit  # type: ignore[attr-defined]
    os.register_at_fork(before=_await_imports, after_in_parent=_go_on, after_in_child=_reinit)
