"""One reading of the history, converted to columns as far as needed."""

import operator
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import repeat
from time import time_ns
from typing import Any, TypeAlias

from vramscope.allocator.ledger import Ledger
from vramscope.allocator.settings import Settings
from vramscope.allocator.torch_history import DeviceHistory, histories
from vramscope.allocator.torch_history.annotations import OWN_REGIONS
from vramscope.allocator.torch_history.events import Events
from vramscope.allocator.torch_history.pinned import SETTINGS, host_history
from vramscope.capture import Sink
from vramscope.capture.cuda.gap import Unlike
from vramscope.capture.cuda.history import RawReading
from vramscope.capture.cuda.rested import rested
from vramscope.capture.cuda.ring.events import ring_events
from vramscope.capture.log import StackLog
from vramscope.model.device import HOST
from vramscope.model.stacks import StackBuilder

NewOfDevice: TypeAlias = tuple[int, Events | None]
"""Index of the first new entry in the ring, and all new ones as columns if they are converted already."""


class Reading:
    """Holds the new events of every device; segments and blocks are converted only when needed (rarely)."""

    def __init__(
        self, raw: RawReading, new: Mapping[int, NewOfDevice], stacks: StackLog, given: tuple[str, int]
    ) -> None:
        """Convert the new entries of *raw*.

        A device that is missing in *new* has no new entries; *given* are torch's version and the time of the
        last annotation of earlier readings in µs.
        """
        self.raw = raw
        self.time_ns = time_ns()
        self._stacks = stacks
        self._torch, self._annotated_us = given
        self._events = self._read(new) if new else {}

    @property
    def annotated_us(self) -> int:
        """The time of the last annotation of this or an earlier reading."""
        marks = self.raw.snapshot.get("external_annotations", [])
        return max((mark["time_us"] for mark in marks), default=self._annotated_us)

    def events(self, device: int) -> DeviceHistory:
        """The new events of *device*."""
        return self._events.get(device) or self._nothing(device)

    def state(self, device: int) -> DeviceHistory:
        """What the allocator holds on *device*, as ``final``; some µs a block."""
        if device == HOST:
            return host_history([], self.raw.snapshot.get("host_segments", []), self._stacks.builder)
        segments = self._segments(device)
        snapshot = self.raw.snapshot | {"device_traces": [], "external_annotations": [], "segments": segments}
        found, _ = histories(snapshot, self._stacks.builder, torch=self._torch)
        return found[0] if segments else self._nothing(device)

    def rested(self, device: int, held: Ledger, pools: Sequence[Any]) -> tuple[Ledger, Unlike] | None:
        """What *device* holds after a rest, *held* before it, and which blocks differ; None if not seen."""
        with suppress(LookupError):
            after, unlike = rested(self._segments(device), held, pools, self.settings(device))
            return (after, unlike) if after.totals == self.raw.totals(device) else None
        return None

    def _segments(self, device: int) -> list[Any]:
        return [segment for segment in self.raw.snapshot["segments"] if segment["device"] == device]

    def settings(self, device: int) -> Settings:
        """The allocator's settings as this reading reports them."""
        given = self.raw.snapshot.get("allocator_settings", {})
        return SETTINGS if device == HOST else Settings.from_snapshot(given, torch=self._torch)

    def forget_events(self) -> None:
        """Release the events after they are written; the state can still be converted."""
        self.raw = replace(self.raw, snapshot=self.raw.snapshot | {"device_traces": []})
        self._events = {}

    def write_stacks(self, sink: Sink) -> None:
        """Write the new stacks, before the tables that refer to them."""
        self._stacks.write(sink)

    def _read(self, new: Mapping[int, NewOfDevice]) -> dict[int, DeviceHistory]:
        snapshot = self.raw.snapshot
        traces = []
        for i, trace in enumerate(snapshot["device_traces"]):
            start, events = new.get(i, (len(trace), None))
            traces.append(events or _new_events(trace[start:]))
        # The hooks recorded what torch's own regions say, and with their exact places.
        marks = [
            mark
            for mark in snapshot.get("external_annotations", [])
            if mark["time_us"] > self._annotated_us and not mark["name"].startswith(OWN_REGIONS)
        ]
        only_new = snapshot | {
            "device_traces": traces,
            "external_annotations": marks,
            "segments": self._pool_segments(traces),
        }
        read, _ = histories(only_new, self._stacks.builder, torch=self._torch)
        if HOST in new:
            start, events = new[HOST]
            events_of_host = events or _new_events(self.raw.ring(HOST)[start:])
            read.append(host_history(events_of_host, [], self._stacks.builder))
        return {history.device: history for history in read}

    def _pool_segments(self, traces: Sequence[Events | list[Any]]) -> list[Any]:
        """The segments without blocks if the pools of events need them (up to torch 2.11), else none."""
        for trace in traces:
            if trace.tells_pools if isinstance(trace, Events) else trace and "pool_id" in trace[0]:
                return []
        segments = self.raw.snapshot["segments"]
        if all(segment.get("segment_pool_id", (0, 0)) == (0, 0) for segment in segments):
            return []
        return [segment | {"blocks": []} for segment in segments]

    def _nothing(self, device: int) -> DeviceHistory:
        settings = self.raw.snapshot.get("allocator_settings", {})
        empty = {"segments": [], "device_traces": [], "allocator_settings": settings}
        found, _ = histories(empty, StackBuilder(), torch=self._torch)
        return replace(found[0], device=device)


def _new_events(trace: list[Any]) -> Events | list[Any]:
    """The entries as columns, or with the forward's stacks where only the general reader converts them."""
    return ring_events(trace) or _with_forward(trace)


_LINE = re.compile(r'\s*File "(.*)", line (\d+), in (.*)')
_BACKWARD = {"name": "backward", "filename": "", "line": 0}


def _with_forward(trace: list[Any]) -> list[Any]:
    """Use the forward's stack for entries of backward that have none of their own.

    torch ≥ 2.11 reports it under anomaly mode.
    """
    if not any(map(operator.contains, trace, repeat("forward_frames"))):
        return trace
    known: dict[int, list[Any]] = {}
    found = []
    for row in trace:
        lines = row.get("forward_frames")
        if lines and not row.get("frames"):
            if id(lines) not in known:
                known[id(lines)] = [_BACKWARD, *_frames(lines)]
            row = row | {"frames": known[id(lines)]}  # noqa: PLW2901 -- torch's own rows stay unchanged
        found.append(row)
    return found


def _frames(lines: list[str]) -> list[Any]:
    matches = [_LINE.match(line) for line in reversed(lines)]
    return [{"filename": m[1], "line": int(m[2]), "name": m[3]} for m in matches if m is not None]
