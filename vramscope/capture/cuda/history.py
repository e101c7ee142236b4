"""Starts, stops, reads and restarts torch's memory history of this process without losing an entry.

Reading it creates hundreds of thousands of Python objects at once. Python's garbage collector would traverse
all of them several times meanwhile, so it is disabled: 1.1 µs an entry instead of 3 to 5 (measured, torch 2.6
and 2.13).
"""

import gc
import inspect
import operator
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from typing import Any

import torch

from vramscope.capture.cuda.counts import (
    BytesInUse,
    EntryCounts,
    counts_of,
    totals_of,
)
from vramscope.capture.hooks.gradients import backwards

MAX_ENTRIES = 250_000
"""Size of the ring; an entry with Python stacks takes 450 bytes, so at most 107 MiB of host memory."""

FEWEST_EMPTIED = 5_000
"""A ring with fewer entries is not emptied: to read them again takes 5 ms.

When the reading begins, a thread may be inside an operator, without the interpreter's lock. While a long ring
is read, that thread ends its operator and waits for the interpreter, so nothing is allocated at the moment
when the ring is emptied. Without this bound 2 of 335 emptyings lost entries.
"""

_call = operator.methodcaller("__call__")


@dataclass(frozen=True, slots=True)
class RawReading:
    """One reading of the history as torch returns it."""

    snapshot: dict[str, Any]
    """torch's snapshot of all devices."""
    before: Mapping[int, Any]
    """The statistics of each device before the snapshot."""
    after: Mapping[int, Any]
    """The statistics of each device after the snapshot; equal to *before* if nothing happened."""
    is_emptied: bool
    """Whether the ring was emptied after the snapshot."""

    @property
    def is_consistent(self) -> bool:
        """Whether nothing happened during the reading, so that entries, segments and statistics agree."""
        return self.before == self.after

    def ring(self, device: int) -> list[Any]:
        """The entries of one device, oldest first."""
        traces = self.snapshot["device_traces"]
        found: list[Any] = traces[device] if device < len(traces) else []
        return found

    def counts(self, device: int) -> tuple[EntryCounts, EntryCounts]:
        """The entry counts of one device before and after the snapshot."""
        return counts_of(self.before[device]), counts_of(self.after[device])

    def totals(self, device: int) -> BytesInUse:
        """The bytes in use on one device after the snapshot."""
        return totals_of(self.after[device])


def is_on() -> bool:
    """Whether torch keeps a history, started by vramscope or by the program."""
    ask = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    return bool(torch.cuda.is_initialized() and ask is not None and ask())


def start(max_entries: int) -> None:
    """Start the history with Python stacks and an empty ring; initializes CUDA."""
    torch.cuda.init()
    for do in _beginnings(max_entries):
        do()


def take_stacks_of_frees(max_entries: int, *, are_taken: bool) -> None:
    """Change, for a history of *max_entries* that is on, whether frees have stacks of their own."""
    context = "all" if are_taken else "alloc"
    _record()(*_arguments("all", max_entries, context=context, clears=False))


def stop() -> None:
    """Stop the history; its entries are discarded."""
    if torch.cuda.is_initialized():
        _record()(*_arguments(None, 1))


def stats(device: int) -> Any:
    """The allocator's statistics of one device; takes 10 to 20 µs and does not synchronize."""
    return torch._C._cuda_memoryStats(device)


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable Python's cyclic garbage collector, which would traverse every entry several times."""
    collects = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if collects:
            gc.enable()


def take(devices: Sequence[int], restart_with: int = 0) -> RawReading:
    """Read the whole history, and empty the ring if requested and nothing happened meanwhile.

    From the first statistics to the emptying no other Python thread runs: the calls are chained in C, where
    the interpreter cannot switch threads. C++ threads may allocate, which the statistics show; those of a
    backward pass may even between the last statistics and the emptying, so the ring is not emptied while one
    runs. An entry that is made in those microseconds nevertheless is lost: the next reading finds that the
    ring has fewer entries than the statistics count.

    Parameters
    ----------
    devices
        The devices whose statistics are read.
    restart_with
        Size of the new, empty ring in entries; 0 leaves the ring as it is.
    """
    ask = [partial(torch._C._cuda_memoryStats, device) for device in devices]
    lazy = _lazy_modules()
    found: deque[Any] = deque()
    # For the first snapshot with Python frames torch imports torch._inductor: 4 s and 800 modules in the
    # middle of a step. If it was not imported before, it generated no code to show.
    calls = [
        _all_of([*ask, dict]),
        partial(lazy.discard, "_inductor"),
        _snapshot(),
        partial(lazy.add, "_inductor"),
        _all_of([*ask, backwards.copy]),
    ]
    is_same = map(operator.eq, map(found.__getitem__, [0]), map(found.__getitem__, [len(calls) - 1]))
    choice = {True: _beginnings(restart_with) if restart_with else [], False: []}
    begin = map(list, map(partial(map, _call), map(choice.__getitem__, is_same)))
    with uncollected():
        try:
            found.extend(chain(map(_call, calls), begin))
        finally:
            lazy.add("_inductor")
    before, _, snapshot, _, after, begun = found
    return RawReading(
        snapshot,
        dict(zip(devices, before, strict=False)),
        dict(zip(devices, after, strict=False)),
        bool(begun),
    )


def _all_of(calls: Sequence[Callable[[], Any]]) -> Callable[[], list[Any]]:
    """Return a C function, for one use, that makes all calls and lists their results."""
    return partial(list, map(_call, calls))


def _beginnings(max_entries: int) -> list[Callable[[], Any]]:
    """The calls that start an empty ring: before torch 2.8 only switching the history off empties it."""
    begin = partial(_record(), *_arguments("all", max_entries))
    if _n_arguments() >= 5:
        return [begin]
    return [partial(_record(), *_arguments(None, 1)), begin]


def _record() -> Callable[..., Any]:
    found: Callable[..., Any] = torch._C._cuda_record_memory_history
    return found


def _arguments(
    enabled: str | None, max_entries: int, *, context: str = "alloc", clears: bool = True
) -> list[Any]:
    """The arguments that torch's own ``_record_memory_history`` passes; later versions have more.

    With the context ``"alloc"`` frees have no stacks of their own: torch takes none, and hands an entry of 25
    frames over in 0.86 µs instead of 1.30 (the least of nine measurements).

    ``free_requested`` is not skipped, which would save a third of the entries and 2 % of a step of 10 ms that
    is host work alone. After ``record_stream``, which C++ calls too and no Python code sees, a block that was
    freed waits for its stream. No other entry shows that, and its bytes would stay allocated for too long.
    """
    # enabled, context, stacks, max_entries,
    # clear_history, compile_context, global_record_annotations, skip_actions
    every = [enabled, context, "python", max_entries, clears, False, True, ["snapshot"]]
    return every[: _n_arguments()]


@cache
def _n_arguments() -> int:
    taken = inspect.signature(torch.cuda.memory._record_memory_history).parameters
    return 8 if "skip_actions" in taken else 7 if "clear_history" in taken else 4


@cache
def _snapshot() -> Callable[[], Any]:
    """torch's C function for a snapshot; newer versions take a memory pool."""
    takes_pool = "_cuda_memorySnapshot(None)" in inspect.getsource(torch.cuda.memory._snapshot)
    ask: Callable[..., Any] = torch._C._cuda_memorySnapshot
    return partial(ask, None) if takes_pool else ask


def _lazy_modules() -> set[str]:
    """The names that ``torch.__getattr__`` imports on first use; a placeholder if torch has no such set."""
    found = getattr(torch, "_lazy_modules", None)
    # If another thread is importing it now, hiding the name would break that import.
    if "torch._inductor" in sys.modules or not isinstance(found, set) or "_inductor" not in found:
        return {"_inductor"}
    return found
