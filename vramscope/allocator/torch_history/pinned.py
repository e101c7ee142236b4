"""Shows torch's host allocator, which hands out pinned memory, as a device (torch ≥ 2.14)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from vramscope.allocator.settings import Settings
from vramscope.allocator.torch_history import DeviceHistory, histories
from vramscope.allocator.torch_history.events import Events, Rows, checked
from vramscope.errors import FormatError
from vramscope.model.device import HOST
from vramscope.model.snapshot import BlockState
from vramscope.model.stacks import StackBuilder

SETTINGS = Settings(granule=1)
"""The host allocator hands out whole segments, which it has rounded itself."""


def host_events(snapshot: Mapping[str, Any]) -> list[Any]:
    """Return the entries of pinned memory that change what is in use: what torch counts falls with the end of
    a free. Raises FormatError if they are no list of objects.
    """
    rows = checked(snapshot.get("host_traces", []), list, "host_traces")
    Rows(rows, "host_traces[{}]".format)
    return [row for row in rows if row.get("action") != "free_requested"]


def host_history(events: Events | list[Any], segments: Any, stacks: StackBuilder) -> DeviceHistory:
    """Return what the host allocator did and holds, from its entries and segments. Raises FormatError."""
    try:
        Rows(checked(segments, list, "host_segments"), "host_segments[{}]".format)
        part = {"device_traces": [events], "segments": [segment | {"device": 0} for segment in segments]}
        ((found,), _) = histories(part, stacks)
    except FormatError as error:
        raise FormatError(f"pinned host memory: {error}") from None
    blocks = found.final.blocks
    waits = blocks.state == BlockState.PENDING_FREE
    blocks = replace(blocks, state=np.where(waits, BlockState.ALLOCATED, blocks.state).astype("u1"))
    return replace(found, device=HOST, final=replace(found.final, blocks=blocks), settings=SETTINGS)
