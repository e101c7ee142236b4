"""The map of segments has every byte where it lies, and names what is in it."""

import gzip
import json
import struct
from typing import Any

import numpy as np
import pytest
from vramscope.dashboard.figures.segment_map import EMPTY, FIRST_FREE, block_ids, is_whole, strip

from vramscope.model.snapshot import Blocks, BlockState, Segments, Snapshot

A, P, F = BlockState.ALLOCATED, BlockState.PENDING_FREE, BlockState.INACTIVE


@pytest.fixture
def state() -> Snapshot:
    """1000 bytes: a segment in use with a hole, and one wholly free."""
    return Snapshot(
        segments=Segments.of(address=[0, 2000], size=[800, 200]),
        blocks=Blocks.of(
            segment=[0, 0, 0, 1], address=[0, 300, 400, 2000], size=[300, 100, 400, 200], state=[A, F, P, F]
        ),
    )


def test_blocks_have_the_allocation_at_their_address(state: Snapshot) -> None:
    ids = block_ids(state, np.array([7, 9]), np.array([2000, 0], "u8"))

    assert ids.tolist() == [9, FIRST_FREE - 1, FIRST_FREE - 2, FIRST_FREE - 3]


def test_area_is_bytes(state: Snapshot) -> None:
    ids = np.array([1, 2, 3, 4])
    pixels = strip(state, ids, width=50, rows=20).ravel()

    counts = {row: int((pixels == row).sum()) for row in (1, 2, 3, 4)}
    assert counts == {1: 300, 2: 100, 3: 399, 4: 199}
    assert pixels.tolist() == sorted(pixels.tolist(), key=lambda row: (row == EMPTY, row)) or EMPTY in pixels


def test_segments_are_set_off_by_a_gap(state: Snapshot) -> None:
    pixels = strip(state, np.array([1, 2, 3, 4]), width=50, rows=20).ravel()

    assert np.flatnonzero(pixels == EMPTY).tolist() == [799, 999]


def test_a_segment_is_whole_where_nothing_is_in_use(state: Snapshot) -> None:
    assert is_whole(state).tolist() == [False, False, False, True]


def test_nothing_reserved_is_an_empty_map() -> None:
    assert (strip(Snapshot(), np.zeros(0), 10) == EMPTY).all()


def test_the_server_answers_for_a_place_on_the_axis(app: Any, view: Any) -> None:
    client = app.server.test_client()
    client.get("/?token=secret-token", base_url="http://127.0.0.1")
    query = {"run": view.run_id, "axis": "events", "x": 6.2, "w": 64}
    body = gzip.decompress(client.get("/api/segments", query_string=query, base_url="http://127.0.0.1").data)
    (length,) = struct.unpack_from("<I", body)
    said = json.loads(body[4 : 4 + length])

    assert said["fields"]["sums"].startswith("1 segment, 512 MiB; ")
    hole = {"run": view.run_id, "at": 6, "id": FIRST_FREE - 10**6}
    assert client.get("/api/block", query_string=hole, base_url="http://127.0.0.1").status_code == 404
