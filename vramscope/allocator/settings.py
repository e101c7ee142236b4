"""The rules by which torch's CUDA caching allocator rounds, splits and searches, and their settings.

The rules are those of c10/cuda/CUDACachingAllocator.cpp (torch 2.1 to 2.13); the settings have the names of
``PYTORCH_CUDA_ALLOC_CONF``. All sizes are bytes.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from vramscope.errors import UsageError
from vramscope.model.table import Array

KIB = 1024
MIB = 1024 * KIB
GRANULE = 512
"""Every block size is a multiple of this."""
SMALL_LIMIT = MIB
"""Rounded requests up to this size use the small pool; a large block keeps a remainder up to this size."""
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
UNLIMITED = 2**63 - 1
_N_INTERVALS = 16


class TieBreak(Enum):
    """Which of several equally large free blocks is used; torch changed this twice."""

    ADDRESS = "address"
    """torch ≤ 2.11: the lowest address."""
    BLOCK = "block"
    """torch 2.12: the oldest block (a split gives its front a new number, the remainder keeps the old one).
    """
    SEGMENT = "segment"
    """torch ≥ 2.13: the oldest segment, then the lowest address."""


def version_of(torch: str) -> tuple[int, int]:
    """``'2.9.1+cu128'`` → (2, 9); the newest where unknown."""
    match = re.match(r"(\d+)\.(\d+)", torch)
    return (int(match[1]), int(match[2])) if match else (9999, 0)


def _tie_break(torch: str) -> TieBreak:
    version = version_of(torch)
    if version >= (2, 13):
        return TieBreak.SEGMENT
    return TieBreak.BLOCK if version == (2, 12) else TieBreak.ADDRESS


@dataclass(frozen=True, slots=True)
class Settings:
    """The allocator settings, with torch's defaults."""

    max_split_size: int = UNLIMITED
    """Blocks at least this large are never split."""
    max_non_split_rounding: int = LARGE_SEGMENT
    """How much larger than the request an unsplittable block may be."""
    roundup_power2_divisions: tuple[int, ...] = (0,) * _N_INTERVALS
    """Steps per power of two, for requests below 2 MiB, below 4 MiB, …; 0 rounds to 512 bytes."""
    garbage_collection_threshold: float = 0.0
    """Part of the allowed memory above which old cached segments are freed; needs ``memory_fraction``."""
    expandable_segments: bool = False
    large_segment_size: int = LARGE_SEGMENT
    """Size of segments for requests of 1 to 10 MiB; the unit in which large expandable segments grow."""
    memory_fraction: float | None = None
    """Fraction of the device's total that this process may reserve."""
    tie_break: TieBreak = TieBreak.SEGMENT
    granule: int = GRANULE
    """Every block size is a multiple of this: 1 for the host allocator, whose entries have whole blocks."""

    @classmethod
    def from_conf(cls, conf: str, torch: str = "") -> "Settings":
        """Parse the text of ``PYTORCH_CUDA_ALLOC_CONF`` as the given version of torch reads it.

        Keys that move no block are ignored; no version means the newest. Raises UsageError if torch would
        refuse a value.
        """
        changes: dict[str, Any] = {"tie_break": _tie_break(torch)}
        for key, value in _pairs(conf):
            changes.update(_parsed(key, value, torch))
        return cls(**changes)

    @classmethod
    def from_snapshot(cls, mapping: Mapping[str, Any], torch: str = "") -> "Settings":
        """Read the ``allocator_settings`` of a snapshot (torch ≥ 2.3; empty = defaults). Never raises.

        The numbers override the text beside them: with two environment variables set, torch 2.13 shows the
        text of the one that it does not use. Only the text has ``max_non_split_rounding_mb`` and
        ``large_segment_size_mb``.
        """
        changes: dict[str, Any] = {"tie_break": _tie_break(torch)}
        for key, value in _pairs(str(mapping.get("PYTORCH_CUDA_ALLOC_CONF", ""))):
            changes.update(_lenient(_parsed, key, value, torch))
        for key in _EXPORTED.keys() & mapping.keys():
            changes.update(_lenient(lambda key, value: {key: _EXPORTED[key](value)}, key, mapping[key]))
        return cls(**changes)

    def rounded(self, size: int) -> int:
        """The block size that a request of *size* bytes needs."""
        divisions = self.roundup_power2_divisions[min(max(size.bit_length() - 21, 0), _N_INTERVALS - 1)]
        if divisions > 1 and size > GRANULE * divisions:
            step = (1 << (size.bit_length() - 1)) // divisions
            return -(-size // step) * step
        return -(-size // self.granule) * self.granule

    def rounded_all(self, sizes: Array) -> Array:
        """The rounded size of each of *sizes* (int64 bytes)."""
        if not any(self.roundup_power2_divisions):
            return -(-sizes // self.granule) * self.granule
        distinct, place = np.unique(sizes, return_inverse=True)
        rounded = np.array([self.rounded(max(size, 0)) for size in distinct.tolist()], dtype="i8")
        return rounded[place]

    def segment_size(self, need: int) -> int:
        """Bytes requested from the driver for a rounded request (without expandable segments)."""
        if need <= SMALL_LIMIT:
            return SMALL_SEGMENT
        if need < LARGE_SEGMENT // 2:
            return self.large_segment_size
        return -(-need // SMALL_SEGMENT) * SMALL_SEGMENT

    def splits(self, need: int, remainder: int) -> bool:
        """Whether the remainder of a block returns to the free list instead of to the caller."""
        if need <= SMALL_LIMIT or self.expandable_segments:
            return remainder >= GRANULE
        return need < self.max_split_size and remainder > SMALL_LIMIT

    def fits(self, need: int, size: int) -> bool:
        """Whether the smallest sufficient free block may serve the request instead of wasting too much."""
        if need < self.max_split_size:
            return size < self.max_split_size
        return size < need + self.max_non_split_rounding


def _megabytes(text: str) -> int:
    return int(text) * MIB


def _divisions(text: str, torch: str = "") -> tuple[int, ...]:
    """``'8'`` or ``'[256:1,512:2,>:4]'``: intervals by their lower end in MiB."""
    if not text.startswith("["):
        return (_power_of_two(text),) * _N_INTERVALS
    found = [0] * _N_INTERVALS
    last = -1
    for name, value in re.findall(r"([^\[\]:,\s]+)\s*:\s*([^\[\]:,\s]+)", text):
        divisions = _power_of_two(value)
        if name == ">":
            # Up to 2.8 the last named interval was overwritten too.
            start = last + 1 if version_of(torch) >= (2, 9) else max(last, 0)
            found[start:] = [divisions] * (_N_INTERVALS - start)
            continue
        index = min(_power_of_two(name).bit_length() - 1, _N_INTERVALS - 1)
        if last < 0:  # all smaller intervals are like the first named one
            found[:index] = [divisions] * index
        found[index] = divisions
        last = index
    return tuple(found)


def _power_of_two(text: str) -> int:
    value = int(text)
    if value < 0 or value & (value - 1):
        raise ValueError("not a power of two")
    return value


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise ValueError("not between 0 and 1")
    return value


def _truth(text: str) -> bool:
    if text not in ("True", "False"):
        raise ValueError("neither True nor False")
    return text == "True"


_CONF: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "max_split_size_mb": ("max_split_size", _megabytes),
    "max_non_split_rounding_mb": ("max_non_split_rounding", _megabytes),
    "roundup_power2_divisions": ("roundup_power2_divisions", _divisions),
    "garbage_collection_threshold": ("garbage_collection_threshold", _fraction),
    "expandable_segments": ("expandable_segments", _truth),
    "large_segment_size_mb": ("large_segment_size", _megabytes),
    "per_process_memory_fraction": ("memory_fraction", _fraction),
}
CONF_KEYS = tuple(_CONF)
"""The keys that affect where blocks go."""


def _pairs(conf: str) -> list[tuple[str, str]]:
    """The keys that affect where blocks go, with their values."""
    found = re.findall(r"(\w+)\s*:\s*(\[[^\]]*\]|[^,]*)", conf)
    return [(key, value.strip()) for key, value in found if key in _CONF]


def _parsed(key: str, text: str, torch: str) -> dict[str, Any]:
    name, read = _CONF[key]
    try:
        return {name: _divisions(text, torch) if read is _divisions else read(text)}
    except ValueError as error:
        raise UsageError(f"PYTORCH_CUDA_ALLOC_CONF: {key}:{text} cannot be: {error}") from None


def _lenient(read: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """The result of *read* on untrusted values; nothing where they make no sense."""
    try:
        return read(*arguments)
    except (UsageError, ValueError, TypeError, OverflowError):
        return {}


def _exported_divisions(value: Any) -> tuple[int, ...]:
    """``{'1': d, '2': d, …, '32768': d}``, in MiB."""
    if not isinstance(value, Mapping):
        raise TypeError("not a mapping")
    return tuple(_power_of_two(str(value.get(str(1 << i), 0))) for i in range(_N_INTERVALS))


_EXPORTED: Mapping[str, Callable[[Any], Any]] = {
    "max_split_size": lambda value: UNLIMITED if int(value) < 0 else int(value),
    "garbage_collection_threshold": float,
    "expandable_segments": lambda value: _truth(str(value)),
    "roundup_power2_divisions": _exported_divisions,
}
