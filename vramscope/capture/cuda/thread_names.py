"""Names the threads that train in torch's history, where several do; an entry itself has no thread.

torch (from the version that has ``_cuda_setMemoryMetadata``) puts a text of the calling thread into each
entry that the thread makes. It is set once a thread, in 0.15 µs, and only after a second thread has begun a
phase: the history of a program that trains in one thread stays as it was.
"""

import threading
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.allocator.torch_history.annotations import OWN_TEXT
from vramscope.capture import hooks
from vramscope.capture.torch_versions.private_functions import GET_METADATA, SET_METADATA, ask, found
from vramscope.model.marks import ANY_THREAD

_WITHOUT_PHASES = 0


class _TextOfThread(threading.local):
    """The text that vramscope has set for the calling thread; empty where it has set none."""

    text = ""


class ThreadNames:
    """The names of the threads that begin phases."""

    def __init__(self) -> None:
        self._can_name = found(SET_METADATA) is not None
        self._own = _TextOfThread()
        self._numbers = count(1)
        self._begun: set[int] = set()
        """The threads that began a phase."""
        self._threads: dict[str, int] = {"": _WITHOUT_PHASES}
        """Ident of the thread by its text."""
        self._is_shared = False
        """Whether the program has texts of its own in the entries, so that one without a text may be any."""

    def phase_begins(self) -> bool:
        """Name the calling thread, which begins a phase, if it is not the only one that does.

        Returns whether it has no name before this and one from here on.
        """
        if not self._can_name or hooks.works_for_another():
            return False
        own = threading.get_ident()
        self._begun.add(own)
        if len(self._begun) < 2 or ask(GET_METADATA) != "":
            return False
        self._own.text = text = f"{OWN_TEXT}{next(self._numbers)}"
        self._threads[text] = own
        ask(SET_METADATA, text)
        return True

    def forget_thread(self) -> None:
        """Take the name of the calling thread back; a text of the program's own stays."""
        text, self._own.text = self._own.text, ""
        if text and ask(GET_METADATA) == text:
            ask(SET_METADATA, "")

    @property
    def are_used(self) -> bool:
        """Whether any thread is named, so that entries say which thread made them."""
        return len(self._threads) > 1

    def makers(self, entries: Sequence[Mapping[str, Any]]) -> NDArray[Any]:
        """The thread that made each entry: 0 for a thread without phases, −1 where that is not known."""
        texts = [entry.get("user_metadata", "") for entry in entries]
        self._is_shared = self._is_shared or not self._threads.keys() >= set(texts)
        known = self._threads | ({"": ANY_THREAD} if self._is_shared else {})
        return np.array([known.get(text, ANY_THREAD) for text in texts], dtype="i8")
