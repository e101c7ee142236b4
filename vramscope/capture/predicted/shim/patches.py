"""Attributes of other modules, replaced for the length of a dry run and put back after it."""

import os
from collections.abc import Callable
from typing import Any

_ABSENT = object()


class Patches:
    """Every replacement of one run, undone in reverse."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def set(self, home: Any, name: str, value: Any) -> None:
        """Put *value* in the place of an attribute, also of one that is not there yet."""
        before = vars(home).get(name, _ABSENT) if hasattr(home, "__dict__") else getattr(home, name, _ABSENT)
        setattr(home, name, value)

        def undo() -> None:
            if before is _ABSENT:
                delattr(home, name)
            else:
                setattr(home, name, before)

        self._undo.append(undo)

    def set_environment(self, name: str, value: str) -> None:
        """Put *value* in the place of an environment variable."""
        before = os.environ.get(name)
        os.environ[name] = value

        def undo() -> None:
            if before is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = before

        self._undo.append(undo)

    def then(self, undo: Callable[[], None]) -> None:
        """Something else to undo, in its turn."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Put every replaced name back."""
        while self._undo:
            self._undo.pop()()
