"""Which module of the model is running? By its path from the root: ``blocks.0.mlp``.

A path is looked up by the identity of the module, so a call costs two small operations. On CUDA, where events
are read long after they happened, every change is kept with its time: two integers. What has a path is
learnt when a root module is called.
"""

import weakref
from array import array
from time import time_ns
from typing import Any

import numpy as np

from vramscope.capture._log import MarkRow
from vramscope.model.marks import ROOT_MODULE, MarkKind, Phase
from vramscope.model.trace import Action, Trace

NONE = 0


class ModuleLog:
    """Paths of the modules of one run, and on a clock which of them ran when."""

    __slots__ = (
        "_calls",
        "_changes",
        "_index",
        "_is_timed",
        "_last",
        "_prefixes",
        "_references",
        "ids",
        "names",
    )

    def __init__(self, *, is_timed: bool) -> None:
        self.ids: dict[int, int] = {}
        """id() of a living module → index of its path."""
        self.names: list[str] = [""]
        """Paths by index; 0 is no module."""
        self._index: dict[str, int] = {"": NONE}
        self._prefixes: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._calls: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._references: dict[int, weakref.ref[Any]] = {}
        self._is_timed = is_timed
        # time, index, time, index …: not tuples, which would make the garbage collector run more often.
        self._changes = array("q")
        self._last = NONE

    def learn(self, root: Any) -> None:
        """Paths of everything in a module that was called as a root.

        Walked again at its 1st, 2nd, 4th, 8th … call: modules grow late.
        """
        calls = self._calls[root] = self._calls.get(root, 0) + 1
        if calls & (calls - 1):
            return
        prefix = self.prefix(root)
        for path, module in root.named_modules():
            if id(module) not in self.ids or path == "":
                self._learn(module, ".".join(filter(None, (prefix, path))) or ROOT_MODULE)

    def prefix(self, root: Any) -> str:
        """Nothing for the first root; of later ones, a critic beside a generator, the path or the class."""
        found = self._prefixes.get(root)
        if found is None:
            found = ""
            if id(root) in self.ids:
                path = self.names[self.ids[id(root)]]
                found = "" if path == ROOT_MODULE else path
            elif self.ids:
                found = self._unused(type(root).__name__)
            self._prefixes[root] = found
        return found

    def changed(self, index: int) -> None:
        """From now on the module of that path is running."""
        if self._is_timed:
            self._changes.extend((time_ns(), index))

    def marks(self, trace: Trace) -> list[MarkRow]:
        """A mark before every allocation of the trace that another module made than the one before.

        Event times are cut to microseconds; between the hook of a module and its first allocation, and
        between its last and the next hook, lie several.
        """
        # A copy: an array cannot grow while something looks into it.
        changes = np.frombuffer(self._changes.tobytes(), dtype="i8").reshape(-1, 2)
        at = np.flatnonzero(trace.action == Action.ALLOC)
        row = np.searchsorted(changes[:, 0], trace.time_ns[at], side="right")
        index = np.concatenate([[self._last], changes[:, 1]])[row]
        new = np.flatnonzero(np.diff(index, prepend=-1))
        return [
            (int(MarkKind.MODULE), int(Phase.OTHER), now, event, 0, NONE, self.names[module])
            for now, event, module in zip(
                trace.time_ns[at[new]].tolist(), at[new].tolist(), index[new].tolist(), strict=True
            )
        ]

    def cut(self) -> None:
        """Every device has its marks: forget the changes."""
        if self._changes:
            self._last = self._changes[-1]
            self._changes = array("q")

    def _learn(self, module: Any, path: str) -> None:
        key = id(module)
        self.ids[key] = self._index.setdefault(path, len(self.names))
        if self.ids[key] == len(self.names):
            self.names.append(path)
        # Its id may be another's when it is gone.
        self._references[key] = weakref.ref(module, lambda _: self._forget(key))

    def _forget(self, key: int) -> None:
        self.ids.pop(key, None)
        self._references.pop(key, None)

    def _unused(self, name: str) -> str:
        taken = set(self._prefixes.values())
        number = 1
        while (found := name if number == 1 else f"{name}#{number}") in taken:
            number += 1
        return found
