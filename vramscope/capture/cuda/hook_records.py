"""What the hooks recorded since the last reading, each with the allocation counts of its moment."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import compress
from operator import attrgetter, methodcaller
from time import time_ns
from tracemalloc import is_tracing
from typing import Any

import torch
from numpy.typing import NDArray

from vramscope.capture import hooks
from vramscope.capture.cuda import history
from vramscope.capture.cuda.ring.instants import UNCOUNTED
from vramscope.capture.cuda.thread_names import ThreadNames
from vramscope.capture.hooks.modules import ModuleLog
from vramscope.capture.log import HolderRow, LabelBatch, MarkRow, drained
from vramscope.model.holders import Word
from vramscope.model.marks import Category, Marks
from vramscope.model.trace import Trace

_DEVICE, _ADDRESS = attrgetter("device"), methodcaller("data_ptr")


@dataclass(frozen=True, slots=True, eq=False)
class HookRecords:
    """Marks, labels and holders that the hooks recorded for one device since the last reading."""

    marks: Sequence[MarkRow]
    """Marks with the allocation count (or UNCOUNTED) in place of ``event``."""
    labels: Sequence[LabelBatch]
    holders: Sequence[tuple[int, HolderRow]]
    """Paths to blocks, each with its time in ns, and the allocation count in place of ``event``."""
    switches: Callable[[Trace], Marks]
    """Returns the marks that are placed in a given trace by time."""
    makers: Callable[[Sequence[Any]], NDArray[Any]] | None = None
    """Returns the thread that made each of torch's entries; None where they do not say it."""


class HookLog:
    """Collects the records of the hooks on every device in use."""

    def __init__(self, device: int, modules: ModuleLog, thread_names: ThreadNames) -> None:
        self.counted: tuple[int, ...] = (device,)
        """The devices in use: marks count the allocations of each."""
        self._modules = modules
        self._thread_names = thread_names
        self.was_traced = False
        """Whether tracemalloc traced the program at any mark, whose place only its time tells then."""
        self._is_closed = False
        self._marks: list[tuple[MarkRow, tuple[int, ...]]] = []
        self._labels: list[LabelBatch] = []
        self._holders: list[tuple[int, int, HolderRow]] = []

    def __bool__(self) -> bool:
        """Whether there is anything to write."""
        return bool(self._marks or self._labels or self._holders)

    def add_mark(self, row: MarkRow, counts: tuple[int, ...]) -> None:
        """Add a mark with the *counts* of its moment."""
        self._marks.append((row, counts))

    def add_labels(
        self, storages: Sequence[Any], category: Category, names: Sequence[str], element_bytes: Sequence[int]
    ) -> Sequence[bool]:
        """Add labels of storages; true for each, as the allocator's history has all of them."""
        if not self._is_closed:
            # Labeling allocates nothing, so one count is right for the whole hook.
            counts, now = dict(zip(self.counted, self.counts(), strict=False)), time_ns()
            places = list(map(_cuda_index, map(_DEVICE, storages)))
            for device in {place for place in places if place is not None}:
                is_there = [place == device for place in places]
                self._labels.append(
                    LabelBatch(
                        device,
                        now,
                        counts.get(device, UNCOUNTED),
                        int(category),
                        addresses=list(map(_ADDRESS, compress(storages, is_there))),
                        element_bytes=list(compress(element_bytes, is_there)),
                        names=list(compress(names, is_there)),
                    )
                )
        return [True] * len(storages)

    def add_holder(self, storage: Any, words: Sequence[Word]) -> None:
        """Add the path to a storage."""
        if storage.device.type == "cuda" and not self._is_closed:
            # A search is long: other threads allocate meanwhile.
            found = () if is_tracing() else map(_allocations, self._stats())
            counts = dict(zip(self.counted, found, strict=False))
            row = (counts.get(storage.device.index, UNCOUNTED), storage.data_ptr(), words)
            self._holders.append((storage.device.index, time_ns(), row))

    def counts(self) -> tuple[int, ...]:
        """Allocations so far on each device in use, read once in a hook; unknown while tracemalloc traces.

        It makes torch's dictionaries take 350 µs instead of 12, several times a step.
        """
        self.was_traced |= is_tracing()
        counts = () if is_tracing() else tuple(map(_allocations, hooks.once_a_hook(self._stats)))
        return counts or (UNCOUNTED,) * len(self.counted)

    def allocated_bytes(self) -> int:
        """Allocated bytes on the first device, read once in a hook."""
        stats = hooks.once_a_hook(self._stats)
        return int(stats[0]["allocated_bytes"]["all"]["current"]) if stats else 0

    def _stats(self) -> Sequence[Any]:
        """The statistics of each device in use; 15 µs a device, without synchronizing."""
        return tuple(map(history.stats, self.counted)) if torch.cuda.is_initialized() else ()

    def take(self) -> Callable[[int], HookRecords]:
        """Remove and return all current records, of a device by its index."""
        marks, labels, holders = drained(self._marks), drained(self._labels), drained(self._holders)
        counted = self.counted

        def records_of(device: int) -> HookRecords:
            at = counted.index(device) if device in counted else len(counted)
            rows = [
                (*row[:3], counts[at] if at < len(counts) else UNCOUNTED, *row[4:]) for row, counts in marks
            ]
            return HookRecords(
                rows,
                [batch for batch in labels if batch.device == device],
                [(now, row) for i, now, row in holders if i == device],
                self._modules.marks,
                self._thread_names.makers if self._thread_names.are_used else None,
            )

        return records_of

    def close(self) -> None:
        """Forget everything, and take labels and holders no more."""
        self._is_closed = True
        self._marks.clear()
        self._labels.clear()
        self._holders.clear()


def _allocations(stats: Any) -> int:
    return int(stats["allocation"]["all"]["allocated"])


@cache
def _cuda_index(device: torch.device) -> int | None:
    """The index of a CUDA device, None for any other; asking a device for its type takes 0.4 µs."""
    return device.index if device.type == "cuda" else None
