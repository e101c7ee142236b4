"""Whatever a record claims, every analysis answers; what it answers adds up."""

import warnings

import numpy as np
import pytest

from vramscope.allocator.replay import reconstruct
from vramscope.allocator.settings import Settings
from vramscope.analysis import analyses
from vramscope.errors import VramscopeError
from vramscope.model.marks import Phases, Steps
from vramscope.model.recording import Recording
from vramscope.model.snapshot import Blocks, Segments, Snapshot
from vramscope.model.stacks import stacks_of
from vramscope.model.trace import Trace

KIB, MIB = 1 << 10, 1 << 20
SOME = np.array([0, 512, KIB, 2 * MIB, 1 << 40, 1 << 47], dtype="u8")
EXTREME = np.array([(1 << 56) - 512, 1 << 57], dtype="u8")
"""No address of CUDA lies beyond."""
SIZES = np.array([0, 1, 512, 1000, MIB, 2 * MIB, 1 << 33, 1 << 48])


def claimed(random, n, addresses):
    """Events of any kind in any order, the clock going back and forth."""
    return Trace.of(
        action=random.integers(0, 9, n),
        time_ns=random.integers(-(1 << 62), 1 << 62, n),
        address=random.choice(addresses, n),
        size=random.choice(SIZES, n),
        stream=random.integers(0, 3, n),
        pool=random.integers(0, 2, n),
        stack_id=random.integers(0, 3, n),
    )


def held(random):
    """Segments of any kind, each with one block of any state."""
    n = int(random.integers(0, 4))
    segments = Segments.of(
        address=np.sort(random.choice(SOME[3:], n, replace=False)) if n <= len(SOME[3:]) else [],
        size=random.choice([512, 2 * MIB], n),
        is_expandable=random.integers(0, 2, n),
        is_large=[True] * n,
    )
    sizes = segments.size
    blocks = Blocks.of(
        segment=np.arange(n),
        address=segments.address,
        size=sizes,
        requested_size=sizes // 2,
        state=random.integers(0, 3, n),
    )
    return Snapshot(segments=segments, blocks=blocks)


def recording_of(random, trace, initial):
    """A record with marks that may lie beyond the events."""
    n, n_marks = len(trace), int(random.integers(0, 4))
    start = np.sort(random.integers(0, n + 5, n_marks))
    return Recording(
        trace=trace,
        initial=initial,
        stacks=stacks_of([("f", "a.py", 1)], [("g", "b.py", 2)]),
        pools=((0, 0), (0, 1)),
        steps=Steps.of(index=range(n_marks), start_event=start, end_event=np.append(start[1:], n)[:n_marks]),
        phases=Phases.of(
            phase=random.integers(0, 10, n_marks), start_event=start, end_event=start + random.integers(0, 5)
        ),
    )


def ask_everything(recording):
    for analysis in analyses().values():
        try:
            found = analysis.run(recording)
        except VramscopeError:
            continue
        if analysis.findings:
            analysis.findings(found)


@pytest.mark.parametrize("seed", range(60))
def test_every_analysis_answers_where_block_sizes_are_as_false_as_the_rest(seed):
    random = np.random.default_rng(seed)
    addresses = np.append(SOME, np.array([1 << 63, (1 << 64) - 512], dtype="u8"))
    trace = claimed(random, int(random.integers(0, 40)), addresses)
    columns = {**dict(trace.columns()), "block_size": trace.size}
    ask_everything(recording_of(random, Trace(**columns), held(random)))


@pytest.mark.parametrize("has_end", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_every_analysis_answers_once_a_record_is_made_sense_of(seed, has_end):
    random = np.random.default_rng(seed)
    trace = claimed(random, int(random.integers(0, 60)), np.append(SOME, EXTREME))
    made = reconstruct(trace, held(random) if has_end else None, Settings(), pools=((0, 0), (0, 1)))
    recording = recording_of(random, made.trace, made.initial)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parts, totals = recording.fragmentation().parts, recording.timeline()
        ask_everything(recording)

    assert (totals.active_bytes >= totals.allocated_bytes).all()
    assert (totals.active_bytes >= totals.requested_bytes).all()
    assert (totals.requested_bytes >= 0).all()
    for name in (
        "requested_bytes",
        "rounding_bytes",
        "pending_bytes",
        "inactive_split_bytes",
        "reserved_bytes",
    ):
        assert (getattr(parts, name) >= 0).all(), name
    if parts.reserved_bytes.any():  # without any segment known, what is reserved is not known either
        assert (parts.releasable_bytes >= 0).all()
    whole = (
        parts.requested_bytes
        + parts.rounding_bytes
        + parts.pending_bytes
        + parts.inactive_split_bytes
        + parts.releasable_bytes
        + parts.private_pools_bytes
    )
    assert np.array_equal(whole, totals.reserved_bytes)
