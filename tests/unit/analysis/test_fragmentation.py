"""The parts over time are those that the whole state shows, at every instant."""

import captures
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramscope.allocator.state_index import StateIndex
from vramscope.analysis.churn import free_fixed_bytes, in_turn
from vramscope.analysis.fragmentation import findings, fragmentation, parts_over_time
from vramscope.analysis.identity import identity_of
from vramscope.formats.torch_snapshot import read
from vramscope.model.counters import Counters
from vramscope.model.device import Device, Process
from vramscope.model.marks import Note
from vramscope.model.recording import Recording
from vramscope.model.snapshot import Blocks, BlockState, Segments, Snapshot
from vramscope.model.stacks import stacks_of
from vramscope.model.trace import Action

FILES = [
    *captures.genuine(),
    *(path for path in captures.snapshots() if path.name != "snap_anonymised_fixture.pickle"),
]
EACH_EVENT = "snap_t25_nca_infer_segchurn.pickle"
OPS = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 4096)), max_size=60)
MIB = 1 << 20


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_parts_are_those_of_the_identity_in_shared_files(path):
    for recording in read(path).recordings:
        parts = parts_over_time(recording)
        index = StateIndex(recording.trace, recording.initial)
        n = len(recording.trace)
        random = np.random.default_rng(2).integers(0, n + 1, 40).tolist()
        for k in range(n + 1) if path.name == EACH_EVENT else (0, n, *random):
            whole = identity_of(index.at(k))
            assert {name: getattr(parts, f"{name}_bytes")[k] for name in whole.parts} == whole.parts, k
            assert parts.reserved_bytes[k] == whole.reserved_bytes


@given(OPS, st.integers(0, 30))
def test_the_parts_are_those_of_the_identity(play, ops, n_before):
    recording = play(ops, n_before).recording
    parts = parts_over_time(recording)
    index = StateIndex(recording.trace, recording.initial)

    for k in range(len(recording.trace) + 1):
        whole = identity_of(index.at(k))
        assert {name: getattr(parts, f"{name}_bytes")[k] for name in whole.parts} == whole.parts


@given(OPS, st.integers(0, 30))
def test_free_segments_in_columns_are_those_found_in_turn(play, ops, n_before):
    recording = play(ops, n_before).recording
    found = free_fixed_bytes(recording)

    assert found is None or np.array_equal(found, in_turn(recording))


def test_free_segments_are_found_in_columns_where_an_address_serves_again(recording):
    made = recording(
        (Action.SEGMENT_ALLOC, 0, 2 * MIB),
        (Action.ALLOC, 0, MIB),
        (Action.SEGMENT_ALLOC, 8 * MIB, 4 * MIB),
        (Action.FREE_REQUESTED, 0, MIB),
        (Action.FREE_COMPLETED, 0, MIB),
        (Action.SEGMENT_FREE, 0, 2 * MIB),
        (Action.SEGMENT_ALLOC, 0, 2 * MIB),
    )

    assert free_fixed_bytes(made).tolist() == [n * MIB for n in (0, 2, 0, 4, 4, 6, 4, 6)]


@pytest.mark.parametrize(
    "contradiction",
    [
        [(Action.ALLOC, 0, MIB), (Action.SEGMENT_ALLOC, 0, 2 * MIB)],
        [(Action.SEGMENT_ALLOC, 0, 2 * MIB), (Action.FREE_COMPLETED, 0, MIB)],
        [(Action.SEGMENT_ALLOC, 0, 2 * MIB), (Action.ALLOC, 0, MIB), (Action.SEGMENT_FREE, 0, 2 * MIB)],
        [(Action.SEGMENT_ALLOC, 0, 2 * MIB), (Action.SEGMENT_ALLOC, MIB, 2 * MIB)],
        [(Action.SEGMENT_MAP, 0, 2 * MIB)],
    ],
)
def test_what_columns_cannot_tell_is_looked_at_in_turn(recording, contradiction):
    assert free_fixed_bytes(recording(*contradiction)) is None


def test_mapped_memory_that_is_torn_apart_leaves_a_free_run_and_one_in_use(recording):
    made = recording(
        (Action.SEGMENT_MAP, 0, 6 * MIB),
        (Action.ALLOC, 4 * MIB, MIB),
        (Action.SEGMENT_UNMAP, 2 * MIB, 2 * MIB),
        (Action.SEGMENT_MAP, 2 * MIB, 2 * MIB),
        (Action.FREE_REQUESTED, 4 * MIB, MIB),
        (Action.FREE_COMPLETED, 4 * MIB, MIB),
    )

    parts = parts_over_time(made)

    assert (parts.releasable_bytes // MIB).tolist() == [0, 6, 0, 2, 0, 0, 6]
    assert (parts.inactive_split_bytes // MIB).tolist() == [0, 0, 5, 1, 5, 5, 0]
    assert (parts.pending_bytes // MIB).tolist() == [0, 0, 0, 0, 0, 1, 0]


def test_a_finding_names_the_line_that_pins_what_was_free_when_the_driver_was_asked(recording):
    stacks = stacks_of([("buffer", "train.py", 7)])
    made = recording(
        (Action.SEGMENT_ALLOC, 0, 100 * MIB),
        (Action.ALLOC, 0, MIB, 1),
        (Action.SEGMENT_ALLOC, 200 * MIB, 100 * MIB),
        (Action.ALLOC, 200 * MIB, 100 * MIB),
        stacks=stacks,
    )

    found = fragmentation(made)
    (finding,) = findings(found)

    assert (found.worst, found.unusable_bytes) == (2, 99 * MIB)
    assert (found.pinned.kept_bytes.tolist(), found.pinned.alloc_event.tolist()) == ([99 * MIB], [1])
    assert (finding.file, finding.line, finding.n_bytes) == ("train.py", 7, 99 * MIB)
    assert "99.0 MiB of 100 MiB" in finding.claim
    assert "when cudaMalloc was called" in finding.claim
    assert finding.claim.endswith("99.0 MiB of it pinned by a block of 1.00 MiB from train.py:7")


@pytest.mark.parametrize(
    "frame",
    [
        ("__get__", "Objects/descrobject.c", 344),
        ("inner", "/usr/lib/python3.11/contextlib.py", 81),
        ("run", "triton/runtime/jit.py", 3),
        ("linear", r"C:\venv\Lib\site-packages\torch\nn\functional.py", 10),
        ("<lambda>", "/src/vramscope/vramscope/capture/_calls.py", 194),
    ],
)
def test_what_pins_memory_is_the_users_line_whatever_lies_between(recording, frame):
    made = recording(
        (Action.SEGMENT_ALLOC, 0, 100 * MIB),
        (Action.ALLOC, 0, MIB, 2),
        (Action.SEGMENT_ALLOC, 200 * MIB, 100 * MIB),
        (Action.ALLOC, 200 * MIB, 100 * MIB),
        stacks=stacks_of([frame, ("step", "/home/me/train.py", 7)]),
    )

    (finding,) = findings(fragmentation(made))

    assert (finding.file, finding.line, finding.function) == ("/home/me/train.py", 7, "step")
    assert finding.claim.endswith("from me/train.py:7")


def test_what_pins_memory_is_marked_where_only_a_library_is_known(recording):
    library = "/usr/lib/python3.11/site-packages/accelerate/optimizer.py"
    stacks = stacks_of([("step", library, 5)], [("other", "/home/me/train.py", 7)])
    made = recording(
        (Action.SEGMENT_ALLOC, 0, 100 * MIB),
        (Action.ALLOC, 0, MIB, 1),
        (Action.SEGMENT_ALLOC, 200 * MIB, 100 * MIB),
        (Action.ALLOC, 200 * MIB, 100 * MIB),
        stacks=stacks,
    )

    (finding,) = findings(fragmentation(made))

    assert finding.file is None
    assert finding.claim.endswith("accelerate/optimizer.py:5 (library)")


GIB = 1 << 30
RETRY = (
    (Action.SEGMENT_ALLOC, 400 * MIB, 2 * MIB),
    (Action.SEGMENT_FREE, 400 * MIB, 2 * MIB),
    (Action.SEGMENT_ALLOC, 400 * MIB, 4 * MIB),
)


@pytest.mark.parametrize(
    ("extra", "known", "severity"),
    [
        # 99 MiB are free pieces of the 200 MiB reserved. A device with room serves what they cannot.
        ((), {"device": Device(total_bytes=80 * GIB)}, "info"),
        ((), {"device": Device(total_bytes=300 * MIB)}, "info"),
        ((), {"device": Device(total_bytes=299 * MIB)}, "warning"),
        ((), {}, "info"),
        # The limit of the process counts, and what the driver had left.
        ((), {"notes": (Note("limit", "250 MiB allowed", 250 * MIB),)}, "warning"),
        (
            (),
            {
                "device": Device(total_bytes=1 * GIB),
                "process": Process(allocator={"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.25"}),
            },
            "warning",
        ),
        (
            (),
            {
                "device": Device(total_bytes=80 * GIB),
                "counters": Counters.of(time_ns=[1, 2], device_free_bytes=[70 * GIB, 98 * MIB]),
            },
            "warning",
        ),
        ((), {"counters": Counters.of(time_ns=[1, 2], device_free_bytes=[-1, 100 * MIB])}, "info"),
        # A retry or a failure says that memory was short, whatever the capacity.
        (RETRY, {"device": Device(total_bytes=80 * GIB)}, "warning"),
        (((Action.OOM, 0, 8 * MIB),), {"device": Device(total_bytes=80 * GIB)}, "warning"),
    ],
)
def test_free_pieces_are_a_warning_only_where_memory_was_short(recording, extra, known, severity):
    made = recording(
        (Action.SEGMENT_ALLOC, 0, 100 * MIB),
        (Action.ALLOC, 0, MIB),
        (Action.SEGMENT_ALLOC, 200 * MIB, 100 * MIB),
        (Action.ALLOC, 200 * MIB, 100 * MIB),
        *extra,
        **known,
    )

    said = findings(fragmentation(made))

    assert [each.severity for each in said if each.n_bytes == 99 * MIB] == [severity]


@pytest.mark.parametrize(("free_bytes", "n_said"), [(70 * GIB, 0), (50 * MIB, 1)])
def test_a_cache_that_lies_idle_is_a_finding_only_where_the_device_was_short(recording, free_bytes, n_said):
    """99 MiB lie beside a block of 1 MiB from before the first event; nothing is asked of the driver."""
    initial = Snapshot(
        segments=Segments.of(address=[0], size=[100 * MIB]),
        blocks=Blocks.of(
            segment=[0, 0],
            address=[0, MIB],
            size=[MIB, 99 * MIB],
            requested_size=[MIB, 0],
            state=[BlockState.ALLOCATED, BlockState.INACTIVE],
        ),
    )
    free = Counters.of(time_ns=[1], device_free_bytes=[free_bytes])

    said = findings(fragmentation(recording((Action.FREE_REQUESTED, 0, MIB), initial=initial, counters=free)))

    assert len(said) == n_said


@pytest.mark.parametrize("name", ["late.pickle.gz", "ring.pickle.gz"])
def test_a_healthy_capture_has_no_warning_about_pieces(name):
    path = next(path for path in captures.genuine() if path.name == name)

    for recording in read(path).recordings:
        found = fragmentation(recording)
        assert found.churn.n_retries + found.churn.n_ooms == 0
        assert [each for each in findings(found) if each.severity != "info"] == []


def test_a_release_that_is_followed_by_a_request_is_a_retry_unless_the_program_asked_for_it(recording):
    stacks = stacks_of([("step", "train.py", 7)], [("empty_cache", "memory.py", 1), ("main", "train.py", 9)])
    by_program = len(stacks) - 1
    rows = [
        (Action.SEGMENT_ALLOC, 0, 2 * MIB),
        (Action.SEGMENT_FREE, 0, 2 * MIB, 1),
        (Action.SEGMENT_ALLOC, 0, 4 * MIB, 1),
        (Action.SEGMENT_FREE, 0, 4 * MIB, by_program),
        (Action.SEGMENT_ALLOC, 0, 4 * MIB),
        (Action.SEGMENT_FREE, 0, 4 * MIB, 1),
        (Action.OOM, 0, 8 * MIB, 1),
    ]

    found = fragmentation(recording(*rows, stacks=stacks)).churn

    assert (found.n_made, found.n_released, found.n_retries, found.n_ooms) == (3, 3, 2, 1)


@pytest.mark.parametrize("source", ["cuda", "predicted"])
def test_what_a_dry_run_released_is_no_event_of_the_past(recording, source):
    made = recording(
        (Action.SEGMENT_ALLOC, 0, 100 * MIB),
        (Action.ALLOC, 0, MIB),
        (Action.SEGMENT_ALLOC, 200 * MIB, 2 * MIB),
        *RETRY,
        source=source,
    )

    said = " ".join(each.claim for each in findings(fragmentation(made)))

    assert "99.0 MiB of 100 MiB reserved" in said
    assert "released once" in said
    assert any(word in said.split() for word in ("was", "were", "did")) == (source == "cuda")


def test_nothing_recorded_has_nothing_to_say():
    found = fragmentation(Recording())

    assert findings(found) == []
    assert found.unusable_bytes == 0
