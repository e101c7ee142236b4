"""Reads how many bytes NCCL's communicators hold on a device, from torch's process groups.

NCCL counts them since 2.29.7 (``ncclCommMemStats``), and torch passes that on since 2.12
(``Backend.memory_stats()``). It reads counters: nothing communicates, and no communicator is created. What
NCCL does not count, and communicators that torch does not know, are not in it.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from time import monotonic
from typing import Any

import torch

from vramscope.model.counters import UNKNOWN

_FIRST_VERSION = (2, 29, 7)
_INTERVAL_S = 1.0
"""NCCL takes its buffers with the first collectives; a job has up to some twenty groups to ask."""


class CommunicatorBytes:
    """The bytes that the communicators of one device held when the program last ended a step.

    They are read on the program's own thread: on another one the question could meet a communicator that is
    being created, and wait for it with Python's lock in hand.
    """

    __slots__ = ("_device", "_next_s", "n_bytes")

    def __init__(self, device: int) -> None:
        self._device = device
        self._next_s = 0.0
        self.n_bytes = UNKNOWN

    def read(self) -> None:
        """Read them again if the last reading is a second old; never raises."""
        now = monotonic()
        if now >= self._next_s:
            self._next_s = now + _INTERVAL_S
            self.n_bytes = total_of(_backends(self._device))


def total_of(backends: Iterable[Any]) -> int:
    """The bytes that these backends' communicators hold on the device; −1 where that is not known.

    *backends* are those of torch's process groups that have a communicator by now.
    """
    n_bytes = UNKNOWN
    try:
        for backend in backends:
            held = _held(backend)
            if held == UNKNOWN:
                return UNKNOWN  # the others alone would pass for all
            n_bytes = max(n_bytes, 0) + held
    except Exception:  # noqa: BLE001 -- other versions of torch, or a group that the program destroys
        return UNKNOWN
    return n_bytes


def _held(backend: Any) -> int:
    versions = backend.get_build_nccl_version(), backend.get_runtime_nccl_version()
    # An older library lacks the function, and calling it would end the process.
    if min(map(tuple, versions)) < _FIRST_VERSION or _shares(backend):
        return UNKNOWN
    stats = backend.memory_stats()
    total, persistent = int(stats["total"]), int(stats["persist"])
    if total != persistent + int(stats["suspend"]):
        return UNKNOWN
    return persistent if stats["suspended"] else total


def _shares(backend: Any) -> bool:
    """Whether a communicator split from another has buffers in common with it: both would count them."""
    is_set = os.environ.get("NCCL_COMM_SPLIT_SHARE_RESOURCES", "0") not in ("", "0")
    return is_set or backend.options.config.split_share == 1


def _backends(device: int) -> Iterator[Any]:
    """NCCL's backends of all process groups that have a communicator on the device."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or not c10d.is_initialized():
        return
    seen: set[int] = set()
    for group in list(c10d._world.pg_map):
        backend = _backend_of(group, torch.device("cuda", device))
        if backend is None or id(backend) in seen:
            continue
        # Asked before it has a communicator, torch guesses the device and says so on stderr.
        if group.bound_device_id is not None or backend._get_sequence_number_for_group() > 0:
            seen.add(id(backend))
            yield backend


def _backend_of(group: Any, device: Any) -> Any:
    try:
        backend = group._get_backend(device)
    except RuntimeError:  # a group for the host
        return None
    return backend if backend.name() == "nccl" else None
