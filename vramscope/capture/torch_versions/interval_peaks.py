"""torch's own peaks between two moments, while the program sees its peaks as ever.

torch has one peak for each counter, since it was last reset. It is reset at each moment here, and every
function of torch that returns or resets peaks is wrapped, and puts in what the program would see without it.
"""

import inspect
import operator
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial, wraps
from itertools import chain
from threading import RLock
from typing import Any

import torch

from vramscope.capture.torch_versions import private_functions as private
from vramscope.capture.undisturbed import Guarded

_call = operator.methodcaller("__call__")
_PEAK = operator.itemgetter("peak")
_CURRENT = operator.itemgetter("current")
_PARTS = operator.itemgetter("all", "small_pool", "large_pool")
FIRST = "allocated_bytes", "reserved_bytes", "requested_bytes", "active_bytes", "inactive_split_bytes"
_ALL = slice(0, 3 * len(FIRST), 3)
"""Where these counters, of both pools, stand among all leaves."""


class ResetPeaks:
    """The peaks of one device; there is one for the life of the process, see ``peaks_of``."""

    def __init__(self, device: int, read: Callable[..., Any], reset: Callable[..., Any]) -> None:
        self._calls = partial(read, device), partial(reset, device)
        stats = read(device)
        levels = {name: level for name, level in stats.items() if type(level) is dict}
        self._flat = [name for name, level in levels.items() if "peak" in level]
        nested = [name for name, level in levels.items() if "all" in level and name not in FIRST]
        self._by_pool = [name for name in levels if name not in (*self._flat, *nested, *FIRST)]
        self._levels = operator.itemgetter(*FIRST, *nested)
        self._lock = RLock()
        self._unmerged: deque[Any] = deque()
        self._hidden: list[int] = []
        """The peaks since the program last reset them, in the order of ``_leaves``."""
        self._hidden_of_pools: dict[Any, int] = {}
        self._since: tuple[int, ...] = ()
        """The peaks since the last moment, from before the program reset them after it."""

    def cut(self) -> tuple[list[int], list[int], tuple[int, ...]]:
        """Begin the next interval; return the levels, the peaks as the program sees them, and the last one's.

        In the order of FIRST. No other Python thread runs between the reading and the reset, as C code
        calls both. What a signal handler interrupts after them is merged by the next use.
        """
        with self._lock:
            self._unmerged.extend(map(_call, self._calls))
            levels = list(map(_CURRENT, self._merge()[_ALL]))
            highest, self._since = self._since, ()
            return levels, self._hidden[_ALL], highest

    def seen(self, stats: dict[str, Any]) -> dict[str, Any]:
        """Put the peaks that the program would see into *stats*, and return it."""
        with self._lock:
            self._merge()
            for leaf, most in zip(self._leaves(stats), self._hidden, strict=False):
                leaf["peak"] = max(leaf["peak"], most)
            for key, leaf in self._leaves_of_pools(stats):
                leaf["peak"] = max(leaf["peak"], self._hidden_of_pools.get(key, 0))
        return stats

    def _leaves(self, stats: dict[str, Any]) -> list[dict[str, int]]:
        """The counters that have a peak; those of allocated and of reserved bytes come first."""
        leaves = [*chain.from_iterable(map(_PARTS, self._levels(stats)))]
        return leaves + [stats[name] for name in self._flat if name in stats]

    def _leaves_of_pools(self, stats: dict[str, Any]) -> Iterator[tuple[Any, dict[str, int]]]:
        """The counters of private pools, each by its name, pool and part."""
        for name in self._by_pool:
            for pool, level in stats.get(name, {}).items():
                yield from (((name, pool, part), leaf) for part, leaf in level.items())

    def forget(self) -> None:
        """The program resets its peaks now: those of the interval are kept."""
        with self._lock:
            self._unmerged.append(self._calls[0]())
            self._merge()
            self._hidden, self._hidden_of_pools = [], {}

    def _merge(self) -> list[dict[str, int]]:
        """Merge what was read, and return the counters of the last reading."""
        leaves: list[dict[str, int]] = []
        while self._unmerged:
            stats = self._unmerged[0]
            if stats is not None:
                leaves = self._leaves(stats)
                peaks = list(map(_PEAK, leaves))
                if not self._hidden:
                    self._hidden = peaks
                elif any(map(operator.gt, peaks, self._hidden)):  # in few steps after the first ones
                    self._hidden = list(map(max, self._hidden, peaks))
                for key, leaf in self._leaves_of_pools(stats):
                    self._hidden_of_pools[key] = max(leaf["peak"], self._hidden_of_pools.get(key, 0))
                self._since = tuple(map(max, self._since or (0,) * len(FIRST), peaks[_ALL]))
            self._unmerged.popleft()
        return leaves


_peaks: dict[int, ResetPeaks] = {}
_wrapped: set[str] = set()
_guard = Guarded(lambda _: None)
"""What fails here leaves the program with torch's own answer."""


def peaks_of(device: int) -> ResetPeaks | None:
    """The peaks of *device*; None where this torch cannot reset them."""
    read, reset = private.found(private.STATISTICS), private.found(private.RESET_PEAKS)
    if device in _peaks or read is None or reset is None:
        return _peaks.get(device)
    try:
        peaks = ResetPeaks(device, *(inspect.unwrap(call, stop=_is_foreign) for call in (read, reset)))
        peaks.seen(read(device))
    except (AttributeError, KeyError, TypeError):  # other statistics than any that were met
        return None
    _peaks[device] = peaks
    for function in (private.STATISTICS, private.ACCELERATOR_STATISTICS):
        _wrap(function.name, _seen)
    for function in (private.RESET_PEAKS, private.ACCELERATOR_RESET_PEAKS):
        _wrap(function.name, _reset)
    return peaks


def as_seen(device: int, stats: dict[str, Any]) -> dict[str, Any]:
    """Put the peaks that the program would see into the statistics of *device*, and return them."""
    peaks = _peaks.get(device)
    return stats if peaks is None else peaks.seen(stats)


def _is_foreign(call: Any) -> bool:
    return getattr(call, "__module__", "") != __name__


def _wrap(name: str, do: Callable[..., Any]) -> None:
    """Wrap a function of torch for good: the program may ask for its peaks long after the recording."""
    original = getattr(torch._C, name, None)
    if original is None or name in _wrapped:
        return
    _wrapped.add(name)

    @wraps(original, assigned=("__name__", "__doc__"))
    def ours(*args: Any, **kwargs: Any) -> Any:
        device = next(iter((*args, *kwargs.values())), None)
        peaks = _peaks.get(device) if isinstance(device, int) else None
        return original(*args, **kwargs) if peaks is None else do(peaks, partial(original, *args, **kwargs))

    setattr(torch._C, name, ours)


def _seen(peaks: ResetPeaks, read: Callable[[], Any]) -> Any:
    stats = read()
    with _guard:
        peaks.seen(stats)
    return stats


def _reset(peaks: ResetPeaks, reset: Callable[[], Any]) -> Any:
    with _guard:
        peaks.forget()
    return reset()
