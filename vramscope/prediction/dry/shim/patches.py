"""Attributes of other modules, replaced for the length of a dry run and put back after it."""

import os
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
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


def when_imported(patches: Patches, name: str, then: Callable[[ModuleType], None]) -> None:
    """Call *then* with a module, at once if it is imported already, else when the program has imported it."""
    module = sys.modules.get(name)
    if module is not None:
        then(module)
        return
    finder = _Finder(name, then)
    sys.meta_path.insert(0, finder)
    patches.then(lambda: sys.meta_path.remove(finder))


class _Finder(MetaPathFinder):
    """Finds one module where Python finds it, and does something when it has run."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._then = then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        """Return the spec of that one module, with a loader that acts afterwards."""
        spec = PathFinder.find_spec(name, path) if name == self._name else None
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            run = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                self._then(module)

            loader.exec_module = exec_module
        return spec
