"""Records which module of the model is running, by its path from the root: ``blocks.0.mlp``.

Paths are looked up by the identity of the module, so a call costs two small operations. On CUDA, where events
are read long after they happened, every change is stored with its time, as two integers. The paths are
collected when a root module is called.
"""

import weakref
from _thread import get_ident
from array import array
from collections import deque
from contextlib import suppress
from itertools import count
from time import time_ns
from typing import Any

import numpy as np

from vramscope.model.marks import ROOT_MODULE, MarkKind, Marks
from vramscope.model.trace import Action, Trace

NONE = 0


def modules_of(root: Any) -> list[tuple[str, Any]]:
    """Return the modules of *root* with their paths, as torch's ``named_modules`` lists them.

    That is not called: a program's own version of it may fail, exit or never end.
    """
    seen: dict[int, tuple[str, Any]] = {}
    waiting = [("", root)]
    while waiting:
        path, module = waiting.pop()
        if module is not None and id(module) not in seen:
            seen[id(module)] = path, module
            inner = list(getattr(module, "_modules", {}).items())
            waiting += [(f"{path}.{name}" if path else str(name), child) for name, child in reversed(inner)]
    return list(seen.values())


def tensors_of(root: Any, home: str) -> list[tuple[str, Any]]:
    """Return the tensors in ``_parameters`` or ``_buffers`` of the modules of *root*, with their paths."""
    seen: dict[int, tuple[str, Any]] = {}
    for path, module in modules_of(root):
        for name, tensor in list(getattr(module, home, {}).items()):
            seen.setdefault(id(tensor), (f"{path}.{name}" if path else name, tensor))
    return [each for each in seen.values() if each[1] is not None]


class _ModuleRef(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to a module that has a path or was called as a root."""

    __slots__ = ("calls", "key", "prefix")
    key: int
    calls: int
    """Number of calls as a root."""
    prefix: str | None


class ModuleLog:
    """Paths of the modules of one run, and the times at which the running module changed."""

    __slots__ = (
        "_changes", "_index", "_inside", "_is_timed", "_known", "_last", "_numbers", "_told", "dead", "ids",
        "names", "untold",
    )  # fmt: skip

    def __init__(self, *, is_timed: bool) -> None:
        self.ids: dict[int, int] = {}
        """The index of a module's path by the id() of the living module."""
        self.names: dict[int, str] = {NONE: ""}
        """Paths by index; index 0 means no module."""
        self._index: dict[str, int] = {"": NONE}
        self._numbers = count(1)
        self._known: dict[int, _ModuleRef] = {}
        self.dead: deque[_ModuleRef] = deque()
        """Modules that are gone, until ``forget`` removes them.

        The weak reference's callback does no more: a Ctrl-C within Python code there would be lost.
        """
        self._inside: dict[int, int] = {}
        self._is_timed = is_timed
        # Time, index, time, index …; not tuples, which would make the garbage collector run more often.
        self._changes = array("q")
        self._last = NONE
        self._told = {NONE}
        self.untold: list[int] = []
        """Modules that were called and have no mark yet, where changes are not timed."""

    def learn(self, root: Any) -> None:
        """Collect the paths of every module below *root*, which was called as a root.

        This is repeated at its 1st, 2nd, 4th, 8th … call, as modules may grow.
        """
        self.forget()
        known = self._of(root)
        known.calls += 1
        if known.calls & (known.calls - 1):
            return
        prefix = self.prefix(root)
        for path, module in modules_of(root):
            if id(module) not in self.ids or path == "":
                self._learn(module, ".".join(filter(None, (prefix, path))) or ROOT_MODULE)

    def prefix(self, root: Any) -> str:
        """The prefix of paths below *root*: empty for the first root, else its path or its class.

        A later root is, for example, a critic beside a generator.
        """
        known = self._of(root)
        if known.prefix is None:
            known.prefix = ""
            if id(root) in self.ids:
                path = self.names[self.ids[id(root)]]
                known.prefix = "" if path == ROOT_MODULE else path
            elif self.ids:
                known.prefix = self._unused(type(root).__name__)
        return known.prefix

    def changed(self, index: int) -> None:
        """Record that from now on the module of path *index* is running on the calling thread.

        If several threads run modules at once, times cannot tell which module an event belongs to: then the
        running module is recorded as none.
        """
        if not self._is_timed:
            if index not in self._told:
                self._told.add(index)
                self.untold.append(index)
            return
        if index == NONE:
            self._inside.pop(get_ident(), None)
        else:
            self._inside[get_ident()] = index
        inside = list(self._inside.values())
        self._changes.extend((time_ns(), inside[0] if len(inside) == 1 else NONE))

    def marks(self, trace: Trace) -> Marks:
        """A mark before every allocation, or failed one, that another module made than the one before.

        In front of the first are marks of the modules that were called for the first time: one that only
        calls others, as ``Sequential`` does, makes no allocation.
        Event times are truncated to microseconds. That is exact enough: several microseconds lie between the
        hook of a module and its first allocation, and between its last allocation and the next hook.
        """
        # A copy: an array cannot grow while a NumPy view of it exists.
        changes = np.frombuffer(self._changes.tobytes(), dtype="i8").reshape(-1, 2)
        at = np.flatnonzero(np.isin(trace.action, (Action.ALLOC, Action.OOM)))
        # Threads that append at the same time may do so out of order.
        row = np.searchsorted(np.maximum.accumulate(changes[:, 0]), trace.time_ns[at], side="right")
        index = np.concatenate([[self._last], changes[:, 1]])[row]
        new = np.flatnonzero(np.diff(index, prepend=-1))
        called = changes[: len(changes) if len(new) else 0, 1]
        called = np.setdiff1d(called, [*self._told, *index[new].tolist()])
        first = np.concatenate([np.zeros(len(called), "i8"), new])
        modules, name = np.unique(np.concatenate([called, index[new]]), return_inverse=True)
        return Marks.of(
            kind=np.full(len(first), MarkKind.MODULE),
            time_ns=trace.time_ns[at[first]],
            event=at[first],
            value=np.full(len(first), NONE),
            name=name,
            names=tuple(self.names[module] for module in modules.tolist()),
        )

    def cut(self, read_ns: int) -> None:
        """Drop the changes up to *read_ns*, before which every event was read and every device has its marks.

        Later ones stay: the program went on while the events were being written, and its next events need
        them.
        """
        changes = np.frombuffer(self._changes.tobytes(), dtype="i8").reshape(-1, 2)
        n = int(np.searchsorted(np.maximum.accumulate(changes[:, 0]), read_ns, side="right"))
        if n:
            self._last = int(changes[n - 1, 1])
            self._told.update(np.unique(changes[:n, 1]).tolist())
            # In place: another thread may be appending to it.
            del self._changes[: 2 * n]

    def _of(self, module: Any) -> "_ModuleRef":
        known = self._known.get(id(module))
        if known is None or known() is not module:
            known = _ModuleRef(module, self.dead.append)
            known.key, known.calls, known.prefix = id(module), 0, None
            self._known[id(module)] = known
        return known

    def _learn(self, module: Any, path: str) -> None:
        index = self._index.get(path)
        if index is None:
            # Another thread may be adding paths too: a number may stay unused, and none is used twice.
            index = self._index.setdefault(path, next(self._numbers))
            self.names[index] = path
        self._of(module)
        self.ids[id(module)] = index

    def forget(self) -> None:
        """Drop the ids of modules that are gone, as new objects may get the same ids."""
        with suppress(IndexError):  # another thread removed it first
            while self.dead:
                dead = self.dead.popleft()
                # A Ctrl-C may have come before its key was set.
                key = getattr(dead, "key", 0)
                if self._known.get(key) is dead:
                    self._known.pop(key, None)
                    self.ids.pop(key, None)

    def _unused(self, name: str) -> str:
        taken = {known.prefix for known in list(self._known.values()) if known() is not None}
        number = 1
        while (found := name if number == 1 else f"{name}#{number}") in taken:
            number += 1
        return found
