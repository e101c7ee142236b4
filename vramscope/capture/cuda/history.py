"""Starts, stops, reads and restarts torch's memory history of this process without losing an entry.

Reading it creates hundreds of thousands of Python objects, which Python's garbage collector would traverse
several times meanwhile, so it is disabled: 1.1 µs an entry instead of 3 to 5 (torch 2.6 and 2.13).
"""

import operator
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from typing import Any

import torch

from vramscope.allocator.torch_history.pinned import host_events
from vramscope.capture.cuda.history_calls import clears_when_asked, left_out, record_call
from vramscope.capture.cuda.ring.counts import BytesInUse, EntryCounts, counts_of, totals_of
from vramscope.capture.hooks.gradients import backwards
from vramscope.capture.torch_versions import version
from vramscope.capture.torch_versions.private_functions import (
    HOST_STATISTICS,
    IS_HISTORY_ON,
    RECORD_HISTORY,
    SNAPSHOT,
    STATISTICS,
    PrivateFunction,
    ask,
    call_of,
    found,
    is_lacking,
    lack,
    problem_of,
)
from vramscope.capture.undisturbed import is_of_a_signal_handler
from vramscope.errors import CaptureError
from vramscope.malloc import collector_off
from vramscope.model.device import HOST

MAX_ENTRIES = 250_000
"""Size of the ring; an entry with Python stacks takes 450 bytes, so at most 107 MiB of host memory."""

FEWEST_EMPTIED = 5_000
"""A ring with fewer entries is not emptied: to read them again takes 5 ms.

While a long ring is read, a thread that was inside an operator ends it and waits for the interpreter, so
nothing is allocated when the ring is emptied. Without this bound 2 of 335 emptyings lost entries.
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
    has_segments: bool = True
    """Whether the snapshot has the segments and blocks."""

    @property
    def is_consistent(self) -> bool:
        """Whether nothing happened during the reading, so that entries, segments and statistics agree."""
        return self.before == self.after

    def ring(self, device: int) -> list[Any]:
        """The entries of one device, oldest first."""
        traces = self.snapshot["device_traces"]
        other = self.snapshot["host_traces"] if device == HOST else []
        return traces[device] if device < len(traces) else other

    def counts(self, device: int) -> tuple[EntryCounts, EntryCounts]:
        """The entry counts of one device before and after the snapshot."""
        return counts_of(self.before[device]), counts_of(self.after[device])

    def totals(self, device: int) -> BytesInUse:
        """The bytes in use on one device after the snapshot."""
        return totals_of(self.after[device])


_ours = {"is_on": False}
"""Whether vramscope has switched the history on, for a torch that cannot be asked whether it is on."""


def is_on() -> bool:
    """Whether torch keeps a history, started by vramscope or by the program."""
    if not torch.cuda.is_initialized():
        return False
    answer = ask(IS_HISTORY_ON)
    if answer is None and is_lacking(IS_HISTORY_ON):
        return _ours["is_on"] or any(call_of(SNAPSHOT)()["device_traces"])
    return bool(answer)


def start(max_entries: int) -> None:
    """Start the history with Python stacks and an empty ring; initializes CUDA."""
    torch.cuda.init()
    for do in _beginnings(max_entries):
        do()
    _ours["is_on"] = True


def take_stacks_of_frees(max_entries: int, *, are_taken: bool) -> None:
    """Change, for a history of *max_entries* that is on, whether frees have stacks of their own."""
    context = "all" if are_taken else "alloc"
    if "stacks" not in left_out():  # torch's would include those of C++
        record_call("all", max_entries, context=context, clears=False)()


def stop() -> None:
    """Stop the history; its entries are discarded."""
    if torch.cuda.is_initialized():
        record_call(None, 1)()
    _ours["is_on"] = False


def stats(device: int) -> Any:
    """The allocator's statistics of one device; takes 10 to 20 µs and does not synchronize."""
    return _of_device(device, _statistics(device)())


def _statistics(device: int) -> Any:
    return found(HOST_STATISTICS) if device == HOST else call_of(STATISTICS, device=device)


def _of_device(device: int, stats: Any) -> Any:
    """Return the statistics in the form that those of a device have."""
    if device != HOST:
        return stats
    # A block counts as in use until its free is completed, and there is no count of requested frees.
    made, held = stats["active_requests"], stats["allocations"]
    counts = {"allocation": made | {"freed": 0}, "active": made, "segment": held}
    levels = {f"{name}_bytes": stats["active_bytes"] for name in ("requested", "allocated", "active")}
    known = counts | levels | {"reserved_bytes": stats["allocated_bytes"]}
    return {name: {"all": level} for name, level in known.items()} | {"num_ooms": 0}


@cache
def host() -> Sequence[int]:
    """The number of the host allocator, where the history has its events and its statistics are as known."""
    stats = ask(HOST_STATISTICS) if "record_pinned_host_memory" not in left_out() else None
    if stats is None or stats.keys() >= {"active_requests", "allocations", "active_bytes", "allocated_bytes"}:
        return () if stats is None else (HOST,)
    lack(HOST_STATISTICS, "returned other statistics than any that were met")
    return ()


@cache
def obstacle() -> str:
    """Why this torch's history cannot be recorded, found by trying it; empty where it can.

    A history that the program keeps is not touched. What stands in the way is remembered as a lack.
    """
    if not torch.cuda.is_available():
        return ""
    torch.cuda.init()
    device = torch.cuda.current_device()
    is_kept = _problem(IS_HISTORY_ON, is_on) == "" and is_on()
    steps: list[tuple[PrivateFunction, Callable[[], Any]]] = [
        (STATISTICS, lambda: (counts_of(stats(device)), totals_of(stats(device)))),
        (RECORD_HISTORY, lambda: _beginnings(1) if is_kept else start(1)),
        (RECORD_HISTORY, _check_that_it_is_on),
        (SNAPSHOT, lambda: call_of(SNAPSHOT) if is_kept else _check_snapshot(take([device]).snapshot)),
    ]
    try:
        return next(filter(None, (_problem(*step) for step in steps)), "")
    finally:
        if not is_kept:
            _problem(RECORD_HISTORY, stop)


def obstacle_met() -> str:
    """What ``obstacle`` said, if it was asked in this process."""
    return obstacle() if obstacle.cache_info().currsize else ""


def _problem(function: PrivateFunction, do: Callable[[], Any]) -> str:
    try:
        do()
    except Exception as error:
        if is_of_a_signal_handler(error):
            raise
        lack(function, problem_of(error), RECORD_HISTORY.serves)
        return f"{function.name} {problem_of(error)}"
    return ""


def _check_that_it_is_on() -> None:
    if not is_on():
        raise CaptureError("did not switch the history on")


def _check_snapshot(snapshot: Any) -> None:
    """Raise CaptureError unless a snapshot has the lists that every torch had so far."""
    if not isinstance(snapshot, dict):
        raise CaptureError(f"returned {type(snapshot).__name__}")
    for key in ("segments", "device_traces"):
        if not isinstance(snapshot.get(key), list):
            raise CaptureError(f"returned no list of {key}")


@cache
def _snapshot_of_traces() -> Callable[[], Any]:
    """The call for a snapshot without segments, where torch can leave them out (checked from 2.11 on)."""
    whole = call_of(SNAPSHOT)
    if whole.args != (None,) or version(torch.__version__) < (2, 11):
        return whole
    return partial(whole.func, (1, 1))  # those of a pool that none is: one of its two numbers is always 0


def take(devices: Sequence[int], restart_with: int = 0, *, has_segments: bool = True) -> RawReading:
    """Read the whole history, and empty the ring if requested and nothing happened meanwhile.

    From the first statistics to the emptying no other Python thread runs: the calls are chained in C, where
    the interpreter cannot switch threads. C++ threads may allocate, which the statistics show, and those of a
    backward pass even after that, so the ring is not emptied while one runs. What is lost nevertheless is
    missed by the next reading. A new, empty ring has *restart_with* entries; 0 leaves it as it is.
    """
    ask_statistics = [*map(_statistics, devices)]
    lazy = _lazy_modules()
    results: deque[Any] = deque()
    # For the first snapshot with Python frames torch imports torch._inductor: 4 s and 800 modules in the
    # middle of a step. If it was not imported before, it generated no code to show.
    calls = [
        _all_of([*ask_statistics, dict]),
        partial(lazy.discard, "_inductor"),
        call_of(SNAPSHOT) if has_segments else _snapshot_of_traces(),
        partial(lazy.add, "_inductor"),
        _all_of([*ask_statistics, backwards.copy]),
    ]
    is_same = map(operator.eq, map(results.__getitem__, [0]), map(results.__getitem__, [len(calls) - 1]))
    choice = {True: _beginnings(restart_with) if restart_with else [], False: []}
    begin = map(list, map(partial(map, _call), map(choice.__getitem__, is_same)))
    with collector_off():
        try:
            results.extend(chain(map(_call, calls), begin))
        finally:
            lazy.add("_inductor")
    before, _, snapshot, _, after, begun = results
    if HOST in devices:
        snapshot["host_traces"] = host_events(snapshot)
    stats = [{i: _of_device(i, of) for i, of in zip(devices, each, strict=False)} for each in (before, after)]
    return RawReading(snapshot, stats[0], stats[1], bool(begun), has_segments)


def _all_of(calls: Sequence[Callable[[], Any]]) -> Callable[[], list[Any]]:
    """Return a C function, for one use, that makes all calls and lists their results."""
    return partial(list, map(_call, calls))


def _beginnings(max_entries: int) -> list[Callable[[], Any]]:
    """The calls that start an empty ring: before torch 2.8 only switching the history off empties it."""
    begin = record_call("all", max_entries)
    return [begin] if clears_when_asked() else [record_call(None, 1), begin]


def _lazy_modules() -> set[str]:
    """The names that ``torch.__getattr__`` imports on first use; a placeholder if torch has no such set."""
    found = getattr(torch, "_lazy_modules", None)
    # If another thread is importing it now, hiding the name would break that import.
    if "torch._inductor" in sys.modules or not isinstance(found, set) or "_inductor" not in found:
        return {"_inductor"}
    return found
