"""Starts recording once the program has imported torch, so that its settings before that take effect."""

import importlib.util
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_TORCH = "torch"


class WhenTorch(MetaPathFinder):
    """Enters *block* after the first import of torch, and exits it at the end of its own ``with`` block."""

    def __init__(self, block: AbstractContextManager[Any]) -> None:
        self._block = block
        self._thread = threading.get_ident()
        self._is_entered = False
        self.refused: Exception | None = None
        """The exception that entering *block* raised; the program that imported torch does not see it."""

    def __enter__(self) -> "WhenTorch":
        if _TORCH in sys.modules:
            self._begin()
        else:
            sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *error: Any) -> None:
        self._leave_path()
        if self._is_entered:
            self._block.__exit__(*error)

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return torch's own spec, with a callback after the import."""
        # The block is entered and exited on one thread; imports by other threads do not start the recording.
        if name != _TORCH or threading.get_ident() != self._thread:
            return None
        self._leave_path()
        spec = importlib.util.find_spec(_TORCH)
        if spec is not None and spec.loader is not None:
            self._listen(spec.loader)
        return spec

    def _listen(self, loader: Any) -> None:
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            run(module)
            # torch is whole, but still marked as importing: a thread of the recorder that imports it would
            # wait for this one, which waits for the recorder.
            if module.__spec__ is not None:
                module.__spec__._initializing = False  # type: ignore[attr-defined]
            self._begin()

        loader.exec_module = exec_module

    def _begin(self) -> None:
        try:
            self._block.__enter__()
        except Exception as error:
            self.refused = error
            raise
        self._is_entered = True

    def _leave_path(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
