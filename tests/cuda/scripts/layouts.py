"""Segments and blocks in plain words, ours and torch's, so that they can be compared."""

import numpy as np

from vramscope.model.snapshot import BlockState

STATES = {
    "active_allocated": BlockState.ALLOCATED,
    "active_pending_free": BlockState.PENDING_FREE,
    "inactive": BlockState.INACTIVE,
}


def layout(state, pools):
    """Segments and blocks in plain words: each segment with its blocks."""
    segments, blocks = state.segments, state.blocks
    edges = np.searchsorted(blocks.segment, np.arange(len(segments) + 1))
    rows = list(
        zip(
            blocks.address.tolist(),
            blocks.size.tolist(),
            blocks.requested_size.tolist(),
            blocks.state.tolist(),
            strict=True,
        )
    )
    return [
        (
            int(segments.address[row]),
            int(segments.size[row]),
            int(segments.stream[row]),
            bool(segments.is_large[row]),
            tuple(pools[segments.pool[row]]),
            bool(segments.is_expandable[row]),
            rows[edges[row] : edges[row + 1]],
        )
        for row in range(len(segments))
    ]


def expected(said):
    """The same of a snapshot of torch; what it calls the requested size of a free block is stale."""
    return [
        (
            segment["address"],
            segment["total_size"],
            segment["stream"],
            segment["segment_type"] == "large",
            tuple(segment["segment_pool_id"]),
            segment["is_expandable"],
            [
                (
                    block["address"],
                    block["size"],
                    block["requested_size"] if block["state"] != "inactive" else 0,
                    STATES[block["state"]],
                )
                for block in segment["blocks"]
            ],
        )
        for segment in said["segments"]
    ]
