"""Growth that is no leak of tensors: in the allocator's cache, and outside of torch. Histories by hand."""

from dataclasses import replace

import numpy as np
import pytest

from vramscope.analysis.leaks import findings
from vramscope.model.counters import Counters
from vramscope.model.marks import Steps
from vramscope.model.trace import Action

MIB = 1 << 20
MS = 1_000_000


def steps_of(ends):
    return Steps.of(index=range(len(ends)), start_event=[0, *ends[:-1]], end_event=ends)


def with_segments(recording, n_steps, *, keeps):
    """Each step takes a segment for a block that no other fits; the block goes, or stays where *keeps*."""
    rows, ends = [], []
    for step in range(n_steps):
        at = (step + 1) * 64 * MIB
        rows += [(Action.SEGMENT_ALLOC, at, 2 * MIB), (Action.ALLOC, at, MIB)]
        if not keeps:
            rows += [(Action.FREE_REQUESTED, at, MIB), (Action.FREE_COMPLETED, at, MIB)]
        ends.append(len(rows))
    return recording(*rows, steps=steps_of(ends))


def with_growing_blocks(recording, n_steps, *, fits):
    """Each step takes a larger block than the one before; its segment grows, or a new one is taken."""
    rows, ends = [], []
    for step in range(n_steps):
        size, at = (20 + step) * MIB, (1 if fits else step + 1) * 1024 * MIB
        grown = MIB if fits and step else size
        rows += [(Action.SEGMENT_ALLOC, at + size - grown, grown), (Action.ALLOC, at, size)]
        rows += [(Action.FREE_REQUESTED, at, size), (Action.FREE_COMPLETED, at, size)]
        ends.append(len(rows))
    return recording(*rows, steps=steps_of(ends))


def with_samples(recording, used, *, n_steps=30, reserved=None, samples_per_step=2):
    """Steps of 100 ms that free what they take, and what the driver counted meanwhile."""
    block = [(Action.ALLOC, 512, 512), (Action.FREE_REQUESTED, 512, 512), (Action.FREE_COMPLETED, 512, 512)]
    rows = block * n_steps
    made = recording(*rows, steps=steps_of([3 * (k + 1) for k in range(n_steps)]))
    time_ns = 1_000 * MS + np.arange(len(rows)) * 100 * MS // 3
    moment = 1_000 * MS + np.arange(int(n_steps * samples_per_step)) * 100 * MS / samples_per_step + 40 * MS
    samples = Counters.of(
        time_ns=moment.astype("i8"),
        event=[-1] * len(moment),
        process_used_bytes=used(np.arange(len(moment)) / samples_per_step),
        reserved_bytes=np.full(len(moment), 20 * MIB) if reserved is None else reserved(moment),
    )
    return replace(made, trace=replace(made.trace, time_ns=time_ns), counters=samples)


def kinds(recording):
    return [finding.kind for finding in findings(recording.leaks())]


def test_segments_that_stay_while_their_blocks_go_are_the_cache_s_growth(recording):
    (finding,) = findings(with_segments(recording, 20, keeps=False).leaks())

    assert finding.kind == "cache_growth"
    assert finding.bytes_per_step == 2 * MIB
    assert finding.cause is None
    assert "no leak" in finding.claim


@pytest.mark.parametrize(("fits", "expected"), [(True, []), (False, ["cache_growth"])])
def test_the_cache_of_blocks_that_grow_is_fragmented_only_beyond_their_peaks(recording, fits, expected):
    """The last of 20 steps needs 39 MiB; segments that fit no later block add up to 590 MiB."""
    made = with_growing_blocks(recording, 20, fits=fits)

    assert kinds(made) == expected


def in_pools(made, pool_of_step):
    """The same, with the segments of each step in a private pool: 4 events a step."""
    pool = np.repeat([pool_of_step(step) for step in range(len(made.steps))], 4)
    pools = tuple((number, 0) for number in range(int(pool.max()) + 1))
    return replace(made, trace=replace(made.trace, pool=pool.astype("i4")), pools=pools)


@pytest.mark.parametrize(
    ("pool_of_step", "words"), [(lambda step: step + 1, "20 at the end"), (lambda _: 1, "free pieces")]
)
def test_what_private_pools_keep_is_no_fragmentation_of_the_cache(recording, pool_of_step, words):
    """Each step captures a graph into a pool of its own, or allocates other sizes in one pool."""
    (finding,) = findings(in_pools(with_segments(recording, 20, keeps=False), pool_of_step).leaks())

    assert finding.kind == "private_pool_growth"
    assert finding.bytes_per_step == 2 * MIB
    assert words in finding.claim
    assert "expandable" not in finding.advice


def test_segments_that_grow_with_a_leak_are_its_own(recording):
    """A block of 1 MiB in a segment of 2: half of what is reserved is cache, and both are reported."""
    found = findings(with_segments(recording, 20, keeps=True).leaks())

    assert [(each.kind, each.bytes_per_step) for each in found] == [("leak", MIB), ("cache_growth", MIB)]


def test_what_a_leak_leaves_of_its_segments_is_no_fragmentation(recording):
    """Each step keeps three blocks of 640 KiB in a segment of 2 MiB, of which 128 KiB stay free."""
    rows, ends = [], []
    for step in range(20):
        at = (step + 1) * 64 * MIB
        rows.append((Action.SEGMENT_ALLOC, at, 2 * MIB))
        rows += [(Action.ALLOC, at + k * 640 * 1024, 640 * 1024) for k in range(3)]
        ends.append(len(rows))

    assert kinds(recording(*rows, steps=steps_of(ends))) == ["leak"]


def test_a_cache_that_a_leak_fills_and_that_comes_again_is_no_fragmentation(recording):
    """Every fifth step keeps 19 MiB, mostly in a new segment: the cache falls once, and rises to less."""
    segments = [22, 20, 20, 22, 0, 22, 20, 20, 22, 20, 22]
    rows, ends = [(Action.SEGMENT_ALLOC, 0, 88 * MIB), (Action.ALLOC, 0, 66 * MIB)], []
    reserved, allocated = 88 * MIB, 66 * MIB
    for step in range(60):
        if step % 5 == 4 and segments:
            size = segments.pop(0) * MIB
            rows += [(Action.SEGMENT_ALLOC, reserved, size)] if size else []
            rows.append((Action.ALLOC, allocated, 19 * MIB))
            reserved, allocated = reserved + size, allocated + 19 * MIB
        rows += [(Action.ALLOC, 1 << 40, 512), (Action.FREE_REQUESTED, 1 << 40, 512)]
        rows.append((Action.FREE_COMPLETED, 1 << 40, 512))
        ends.append(len(rows))

    assert kinds(recording(*rows, steps=steps_of(ends))) == ["leak"]


def test_a_process_that_grows_beyond_what_torch_reserved_grows_outside(recording):
    made = with_samples(recording, lambda step: (500 * MIB + 4 * MIB * np.floor(step)).astype("i8"))
    (finding,) = findings(made.leaks())

    assert finding.kind == "outside_growth"
    assert finding.bytes_per_step == pytest.approx(4 * MIB, rel=0.05)


def test_of_steps_shorter_than_the_time_between_samples_the_growth_is_seen_too(recording):
    made = with_samples(
        recording,
        lambda step: (500 * MIB + MIB * np.floor(step)).astype("i8"),
        n_steps=400,
        samples_per_step=0.1,
    )
    (finding,) = findings(made.leaks())

    assert finding.kind == "outside_growth"
    assert finding.bytes_per_step == pytest.approx(MIB, rel=0.1)


@pytest.mark.parametrize(
    "used",
    [
        lambda step: np.full(len(step), 500 * MIB),
        lambda step: (500 * MIB + 90 * MIB * (step > 3) + 30 * MIB * (step > 8)).astype("i8"),
        lambda step: np.full(len(step), -1),
        lambda step: (500 * MIB + 40 * MIB * (step % 5)).astype("i8"),
    ],
    ids=["level", "libraries loaded at the start", "nobody could ask", "comes and goes"],
)
def test_a_process_that_does_not_keep_growing_is_no_finding(recording, used):
    assert kinds(with_samples(recording, used)) == []


def test_a_process_that_grows_by_what_torch_reserves_does_not_grow_outside(recording):
    def reserved(moment):
        return (20 * MIB + (moment - moment[0]) / (100 * MS) * 4 * MIB).astype("i8")

    made = with_samples(recording, lambda step: (520 * MIB + 4 * MIB * step).astype("i8"), reserved=reserved)

    assert "outside_growth" not in kinds(made)
