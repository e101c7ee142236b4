"""Returns host memory to the system that ``malloc`` and Arrow keep free in this process.

Each reading and each compaction needs 10 to 100 MB for a moment, of which glibc keeps up to 64 MB in the heap
of each thread: a recording of 48 million events grew by 82 to 118 MB after its first five minutes.
"""

import sys
from time import monotonic

from vramscope.malloc import malloc_trim, resident_bytes

_EVERY_S = 60.0
"""Shortest time between two trims: one takes 8 to 70 ms on a busy machine, without the interpreter's lock."""
_GROWN_BYTES = 8_000_000
"""Growth of the resident memory since the last trim that makes the next one worthwhile."""


class MallocTrimmer:
    """Trims the free memory of ``malloc`` every *every_s* seconds, a minute, if the process has grown.

    Without glibc it does nothing.
    """

    def __init__(self, every_s: float = _EVERY_S) -> None:
        self._every_s, self._trim = every_s, malloc_trim()
        self._looked_at = monotonic()
        self._least_bytes = resident_bytes()

    def trim_if_grown(self) -> None:
        """Return free memory to the system if the process has grown by 8 MB; looks once a minute."""
        if self._trim is None or monotonic() - self._looked_at < self._every_s:
            return
        self._looked_at = monotonic()
        if resident_bytes() > self._least_bytes + _GROWN_BYTES:
            # Arrow's allocator keeps what this thread wrote with: 14 MB more each minute.
            arrow = sys.modules.get("pyarrow")
            if arrow is not None:
                arrow.default_memory_pool().release_unused()
            self._trim(0)
            self._least_bytes = resident_bytes()
        else:
            self._least_bytes = min(self._least_bytes, resident_bytes())
