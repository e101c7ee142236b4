"""Finds the objects that ``gc.freeze()`` has taken off the garbage collector's lists.

A program freezes what it has loaded before it forks workers. ``gc.get_objects()`` leaves these objects out,
and ``gc.unfreeze()`` would change the program, so they are found by references instead.
"""

import gc
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

from vramscope.capture.holders.roots import locals_of
from vramscope.capture.undisturbed.tracked import tracked_objects

_AT_ONCE = 4096


def frozen_objects() -> list[Any]:
    """Return the frozen objects that modules, live frames and unfrozen objects lead to, and unfrozen tuples.

    Takes about 1 s per million objects, and nothing where the program froze none. It runs no code of the
    objects. A frozen object that nothing refers to, such as a cycle, is not found.
    """
    if not gc.get_freeze_count():
        return []
    # Tuples among them are found from what holds them.
    tracked = tracked_objects(lambda _: True)
    unfrozen = set(map(id, tracked))
    met, found = set(unfrozen), []
    level: list[Any] = [*_roots(sys._getframe(1)), *tracked]
    while level:
        following: list[Any] = []
        for first in range(0, len(level), _AT_ONCE):
            for part in gc.get_referents(*level[first : first + _AT_ONCE]):
                if id(part) not in met and gc.is_tracked(part):
                    met.add(id(part))
                    following.append(part)
        found += following
        level = following
    return found


def _roots(mine: types.FrameType) -> Iterator[Any]:
    """Yield all modules, and what the frames of all threads hold: a running frame does not list its locals.

    Of the calling thread *mine* is the innermost frame, as the frames of this module hold what is found.
    """
    yield sys.modules
    tops = sys._current_frames() | {threading.get_ident(): mine}
    for top in tops.values():
        frame: types.FrameType | None = top
        while frame is not None:
            yield frame.f_globals
            yield locals_of(frame)
            frame = frame.f_back
