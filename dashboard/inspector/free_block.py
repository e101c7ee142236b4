"""A free block in the inspector: its segment, and which blocks keep the segment from being released."""

from typing import Any

import numpy as np
from dash import html

from vramscope.model.snapshot import BlockState
from vramscope.units import format_bytes, format_count

from ..answers import folded, moment, state_of
from ..components.panel import facts
from ..data import Data, View
from .parts import amount, keepers, section, title

MOST_BLOCKS = 8


def content(data: Data, view: View, k: int, at: int) -> Any:
    """Return what is known about block *k* of the state at the instant; None where there is none."""
    state = state_of(data, view, at)
    blocks, segments = state.blocks, state.segments
    if not 0 <= k < len(blocks):
        return None
    owner = int(blocks.segment[k])
    inside = blocks.segment == owner
    used = np.flatnonzero(inside & blocks.in_use)
    free = int(blocks.size[inside & (blocks.state == BlockState.INACTIVE)].sum())
    kind = "Free block" if blocks.state[k] == BlockState.INACTIVE else "Pending block"
    pool = "large" if segments.is_large[owner] else "small"
    return [
        title(kind, amount(int(blocks.size[k])), f"at {moment(data, view, at).words}"),
        facts(
            ("Segment", f"{format_bytes(int(segments.size[owner]))} at {int(segments.address[owner]):#x}"),
            ("Stream", f"{int(segments.stream[owner])}, {pool} blocks"),
            ("Free in it", amount(free)),
        ),
        _keepers(data, view, blocks, used),
    ]  # fmt: skip


def _keepers(data: Data, view: View, blocks: Any, used: Any) -> Any:
    if not len(used):
        return html.P("The segment is wholly free: empty_cache() returns it.", className="dim")
    listed = keepers(folded(data, view), blocks, used, MOST_BLOCKS)
    words = f"{format_count(len(used), 'block')} in use {'keeps' if len(used) == 1 else 'keep'} the segment:"
    return section("Kept by", html.P(words, className="dim"), listed)
