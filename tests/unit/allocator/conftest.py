"""Traces and snapshots from a few words."""

from collections.abc import Callable

import pytest

from vramscope.model.snapshot import Blocks, Segments, Snapshot
from vramscope.model.trace import Action, Trace


@pytest.fixture
def trace_of() -> Callable[..., Trace]:
    """A trace of (action, address, size) rows, each with an optional stream."""

    def build(*rows: tuple[int, ...]) -> Trace:
        full = [(*row, 0)[:4] for row in rows]
        columns = dict(zip(("action", "address", "size", "stream"), zip(*full, strict=True), strict=True))
        return Trace.of(**columns, time_ns=range(1, len(rows) + 1), stack_id=range(1, len(rows) + 1))

    return build


@pytest.fixture
def snapshot_of() -> Callable[..., Snapshot]:
    """A snapshot of segments: (address, size, [(size, requested, state), …])."""

    def build(*segments: tuple[int, int, list[tuple[int, int, int]]], expandable: bool = False) -> Snapshot:
        rows = []
        for i, (address, _, blocks) in enumerate(segments):
            for size, requested, state in blocks:
                rows.append((i, address, size, requested, state))
                address += size  # noqa: PLW2901 runs through the segment
        names = ("segment", "address", "size", "requested_size", "state")
        return Snapshot(
            segments=Segments.of(
                address=[s[0] for s in segments],
                size=[s[1] for s in segments],
                is_large=[s[1] > 2 << 20 for s in segments],
                is_expandable=[expandable] * len(segments),
            ),
            blocks=Blocks.of(**dict(zip(names, zip(*rows, strict=True), strict=False))),
        )

    return build


@pytest.fixture
def recorder() -> Callable[..., Trace]:
    """Collects what an allocator emits; ``.trace()`` as torch would have recorded it."""

    class Recorder:
        def __init__(self) -> None:
            self.rows: list[tuple[int, ...]] = []

        def __call__(self, *row: int) -> None:
            self.rows.append(row)

        @property
        def actions(self) -> list[Action]:
            return [Action(row[0]) for row in self.rows]

        def trace(self) -> Trace:
            names = ("action", "address", "size", "block_size", "stream", "pool")
            return Trace.of(**dict(zip(names, zip(*self.rows, strict=True), strict=False)))

    return Recorder
