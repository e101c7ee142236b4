"""The runs below one URL, for ``Data``: each has a directory that its files are copied to when it opens."""

from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from time import monotonic

from vramscope.errors import StoreError
from vramscope.remote.copies import RemoteTree, runs_in

from ..runs import Library

LIST_EVERY_S = 10.0
"""The least time between two listings of the store."""


class RemoteLibrary(Library):
    """Finds the runs in a store.

    *url* is a folder of runs, one run, or one file; the store is listed at most every *list_every_s*. Raises
    VramscopeError if there is nothing at *url*, or the store is not reached.
    """

    def __init__(self, url: str, *, list_every_s: float = LIST_EVERY_S) -> None:
        self._list_every_s = list_every_s
        self.url = url.rstrip("/")
        self._tree = RemoteTree(url)
        self._lock = Lock()
        self._listed_s = float("-inf")
        self._known: list[Path] = []
        self.root = self._tree.path
        self._list()

    def discover(self, _root: Path) -> Sequence[Path]:
        """Return the local directories of all runs, newest first."""
        with self._lock:
            if monotonic() - self._listed_s > self._list_every_s:
                try:
                    self._list()
                except StoreError:
                    # The store is away for a moment: the known runs stay.
                    self._listed_s = monotonic()
            return self._known

    def location(self, path: Path) -> str:
        """Return the URL of a run by its local directory."""
        below = path.relative_to(self.root).as_posix()
        return self.url if below == "." else f"{self.url}/{below}"

    def _list(self) -> None:
        listed = self._tree.listing()
        changed: dict[str, float] = {}
        for run in runs_in(listed):
            inside = f"{run}/" if run else ""
            changed[run] = max(each.changed_s for name, each in listed.items() if name.startswith(inside))
            (self.root / run).mkdir(parents=True, exist_ok=True)
        if not changed and "" in listed:
            self._tree.copy_all()
            changed[""] = listed[""].changed_s
        newest = sorted(changed, key=lambda run: changed[run], reverse=True)
        self._known = [self.root / run if run else self.root for run in newest]
        self._listed_s = monotonic()
