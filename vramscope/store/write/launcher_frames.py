"""Removes the frames of ``vramscope run`` from the bottom of stacks: they are not part of the program."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

_PACKAGE = Path(__file__).parents[2]
_OURS = frozenset(
    str(_PACKAGE / name) for name in ("__main__.py", "cli.py", "commands/run.py", "prediction/script.py")
)
# The console script, and the frames of python -m.
_LAUNCHERS = re.compile(
    r"(?:^|[/\\])vramscope(?:-script\.py|\.exe[/\\]__main__\.py)?$|^<frozen runpy>$|[/\\]runpy\.py$"
)

Node = tuple[int, str, str, int]
"""A stack node: parent, function, file, line."""


class LaunchFrames:
    """Makes stacks begin in the program: nodes of the launcher stay, but no other node refers to them."""

    def __init__(self) -> None:
        self._n_rows = 1  # row 0 is the empty stack
        self._launcher = {0}

    def without(self, nodes: Iterable[Node]) -> Iterator[Node]:
        """Yield the next rows of the stream."""
        for parent, function, file, line in nodes:
            is_launcher = parent in self._launcher and (file in _OURS or _LAUNCHERS.search(file) is not None)
            yield 0 if parent in self._launcher and not is_launcher else parent, function, file, line
            if is_launcher:
                self._launcher.add(self._n_rows)
            self._n_rows += 1
