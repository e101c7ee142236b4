"""Pinned host memory that only ever rises is told; what is handed back, or lies still, is not."""

import pytest

from vramscope.analysis.pinned_growth import pinned_growth
from vramscope.model.counters import Counters
from vramscope.model.marks import Steps
from vramscope.model.trace import Action

MIB = 1 << 20


RISES = [16 * k for k in range(1, 11)]


@pytest.mark.parametrize(
    ("levels", "held", "grown"),
    [
        (RISES, RISES, [144]),
        ([-1] * 10, RISES, [144]),
        ([160] * 10, [160] * 10, []),
        ([16, 32] * 5, [32] * 10, []),
        ([16, 32, 48, 64, 80, 96, 112, 112, 112, 112], [112] * 10, []),
        ([1 * k for k in range(1, 11)], [10] * 10, []),
        (RISES, [16] * 10, []),
    ],
    ids=["rises", "in use unknown", "still", "handed back", "a full ring", "little", "miscounted by torch"],
)
def test_growth_is_told_by_its_bytes(recording, levels, held, grown):
    rows = [(Action.ALLOC, 0, 512), (Action.FREE_COMPLETED, 0, 512)] * 10
    samples = Counters.of(
        time_ns=[2000 + 1000 * k for k in range(10)],
        host_pinned_active_bytes=[level * MIB if level >= 0 else -1 for level in levels],
        host_pinned_bytes=[level * MIB for level in held],
    )
    steps = Steps.of(index=range(10), start_event=range(0, 20, 2), end_event=range(1, 21, 2))

    found = pinned_growth(recording(*rows, counters=samples, steps=steps))

    assert [each.n_bytes // MIB for each in found] == grown
