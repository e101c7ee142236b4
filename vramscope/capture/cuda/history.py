"""torch's memory history of this process: switched on and off, read, and begun anew without losing an entry.

Reading it makes hundreds of thousands of Python objects at once. Python's garbage collector would walk
through all of them several times meanwhile, so it is held: 1.1 µs an entry instead of 3 to 5 (measured, torch
2.6 and 2.13).
"""

import gc
import inspect
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from vramscope.capture.cuda.counts import (
    BytesInUse,
    EntryCounts,
    counts_of,
    totals_of,
)
from vramscope.capture.gradients import backwards

MAX_ENTRIES = 250_000
"""Of 450 bytes each with Python stacks, so at most 107 MiB of host memory."""

_call = operator.methodcaller("__call__")


@dataclass(frozen=True, slots=True)
class RawReading:
    """One reading of the history."""

    snapshot: dict[str, Any]
    """As torch gives it, of all devices."""
    before: Mapping[int, Any]
    """The statistics of each device at its beginning, …"""
    after: Mapping[int, Any]
    """… and at its end: the same where nothing happened meanwhile."""
    after_restart: Mapping[int, Any] | None
    """The statistics after the ring was emptied; None where it was not."""

    @property
    def is_consistent(self) -> bool:
        """Whether nothing happened while it was read: then entries, segments and statistics agree."""
        return self.before == self.after

    def ring(self, device: int) -> list[Any]:
        """The entries of one device, oldest first."""
        traces = self.snapshot["device_traces"]
        found: list[Any] = traces[device] if device < len(traces) else []
        return found

    def counts(self, device: int) -> tuple[EntryCounts, EntryCounts]:
        """Before and after."""
        return counts_of(self.before[device]), counts_of(self.after[device])

    def totals(self, device: int) -> BytesInUse:
        """At the end."""
        return totals_of(self.after[device])


def is_on() -> bool:
    """Whether a history is kept, ours or the program's."""
    ask = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    return bool(torch.cuda.is_initialized() and ask is not None and ask())


def start(max_entries: int) -> None:
    """From here on, with Python stacks and an empty ring; initializes CUDA."""
    torch.cuda.init()
    for do in _beginnings(max_entries):
        do()


def stop() -> None:
    """Keep none; what was kept is gone at once."""
    if torch.cuda.is_initialized():
        _record()(*_arguments(None, 1))


def stats(device: int) -> Any:
    """The allocator's statistics of one device: 10 to 20 µs, without synchronizing."""
    return torch._C._cuda_memoryStats(device)


@contextmanager
def uncollected() -> Iterator[None]:
    """Without Python's cyclic garbage collector, which would walk through every entry several times."""
    collects = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if collects:
            gc.enable()


def take(devices: Sequence[int], restart_with: int = 0) -> RawReading:
    """Read all; and where *restart_with* entries are wanted and nothing happens meanwhile, empty the ring.

    From the first look at the statistics to the last no other Python thread runs: the calls are chained in C,
    where the interpreter has no occasion to switch. Threads of C++ may allocate; the statistics tell.
    """
    ask = [partial(torch._C._cuda_memoryStats, device) for device in devices]
    lazy = _lazy_modules()
    with uncollected():
        try:
            # With the first snapshot that has Python frames torch looks for torch._inductor and imports it:
            # 4 s and 800 modules, in the middle of a step. Where nobody imported it, it made no code to show.
            chain = [*ask, partial(lazy.discard, "_inductor"), _snapshot()]
            found = list(map(_call, [*chain, partial(lazy.add, "_inductor"), *ask]))
        finally:
            lazy.add("_inductor")
    n = len(ask)
    before, snapshot, after = found[:n], found[n + 1], found[n + 3 :]
    restarted = _restart(ask, after, restart_with) if restart_with and before == after else None
    after_restart = None if restarted is None else dict(zip(devices, restarted, strict=True))
    return RawReading(
        snapshot,
        dict(zip(devices, before, strict=True)),
        dict(zip(devices, after, strict=True)),
        after_restart,
    )


def _restart(ask: Sequence[Callable[[], Any]], expected: list[Any], max_entries: int) -> list[Any] | None:
    """Empty the ring if the statistics are still as *expected*; those afterwards, None where they were not.

    Asking, comparing and emptying are one chain of C calls again, of some microseconds. In these a thread
    that runs Python allocates nothing, as it waits for the interpreter; one in a backward pass does.
    """
    statistics = map(_call, [partial(list, map(_call, [*ask, backwards.copy]))])
    same = map(operator.methodcaller("__eq__", [*expected, {}]), statistics)
    begins, nothing = _beginnings(max_entries), [bool]
    todo = map({True: begins, False: nothing}.__getitem__, same)
    done = list(map(list, map(partial(map, _call), todo)))
    if done[0] == [False]:
        return None
    return [one() for one in ask]


def _beginnings(max_entries: int) -> list[Callable[[], Any]]:
    """The calls that begin an empty ring: before torch 2.8 nothing but switching off empties it."""
    begin = partial(_record(), *_arguments("all", max_entries))
    if _n_arguments() >= 5:
        return [begin]
    return [partial(_record(), *_arguments(None, 1)), begin]


def _record() -> Callable[..., Any]:
    found: Callable[..., Any] = torch._C._cuda_record_memory_history
    return found


def _arguments(enabled: str | None, max_entries: int) -> list[Any]:
    """What torch's own ``_record_memory_history`` passes on: it grew from version to version."""
    # enabled, context, stacks, max_entries,
    # clear_history, compile_context, global_record_annotations, skip_actions
    every = [enabled, "all", "python", max_entries, True, False, True, ["snapshot"]]
    return every[: _n_arguments()]


@cache
def _n_arguments() -> int:
    taken = inspect.signature(torch.cuda.memory._record_memory_history).parameters
    return 8 if "skip_actions" in taken else 7 if "clear_history" in taken else 4


@cache
def _snapshot() -> Callable[[], Any]:
    """torch's C function itself; newer ones take a memory pool."""
    takes_pool = "_cuda_memorySnapshot(None)" in inspect.getsource(torch.cuda.memory._snapshot)
    ask: Callable[..., Any] = torch._C._cuda_memorySnapshot
    return partial(ask, None) if takes_pool else ask


def _lazy_modules() -> set[str]:
    """The names that ``torch.__getattr__`` imports when asked for them; a set of ours where it has none."""
    found = getattr(torch, "_lazy_modules", None)
    # Another thread may be importing it: it would not find what it has begun.
    if "torch._inductor" in sys.modules or not isinstance(found, set) or "_inductor" not in found:
        return {"_inductor"}
    return found
