"""Why an allocation failed: each cause where it alone would have made room, none where it would not."""

from dataclasses import replace

import pytest

from vramscope.analysis.oom import ANALYSIS, oom
from vramscope.analysis.oom.cause import Cause, Room, cause
from vramscope.model.counters import Counters
from vramscope.model.device import Device, Process
from vramscope.model.marks import Category, Labels, MarkKind, Marks, Note, Steps
from vramscope.model.recording import Recording
from vramscope.model.stacks import StackBuilder
from vramscope.model.trace import Action, Trace

GIB, MIB = 1 << 30, 1 << 20

# 40 GiB, of which 1 GiB is outside; 2 GiB were asked for when the driver had 1.
FULL = Room(
    need_bytes=2 * GIB,
    from_driver_bytes=2 * GIB,
    allocated_bytes=38 * GIB,
    reserved_bytes=38 * GIB,
    free_here_bytes=0,
    largest_here_bytes=0,
    free_other_streams_bytes=0,
    free_private_bytes=0,
    device_free_bytes=1 * GIB,
    capacity_bytes=40 * GIB,
    limit_bytes=40 * GIB,
    own_outside_bytes=1 * GIB,
    own_outside_growth_bytes=0,
    others_bytes=0,
)

CASES = [
    ({}, Cause.CAPACITY),
    ({"free_here_bytes": 1 * GIB, "allocated_bytes": 37 * GIB}, Cause.FRAGMENTATION),
    ({"free_here_bytes": 1 * GIB - 1}, Cause.CAPACITY),
    ({"leaked_bytes": 20 * GIB}, Cause.LEAK),
    # A leak, but a tenth of what is reserved: it was not yet the reason.
    ({"leaked_bytes": 2 * GIB}, Cause.CAPACITY),
    ({"free_private_bytes": 1 * GIB}, Cause.PRIVATE_POOL),
    ({"free_other_streams_bytes": 1 * GIB}, Cause.OTHER_STREAM),
    ({"free_other_sizes_bytes": 1 * GIB}, Cause.SIZE_CLASS),
    ({"free_other_sizes_bytes": 1 * GIB - 1}, Cause.CAPACITY),
    ({"others_bytes": 1 * GIB, "own_outside_bytes": 0}, Cause.OTHER_PROCESS),
    ({"others_bytes": 1 * GIB - 1}, Cause.CAPACITY),
    ({"own_outside_bytes": 3 * GIB, "own_outside_growth_bytes": 2 * GIB}, Cause.NON_TORCH_GROWTH),
    ({"need_bytes": 21 * GIB, "from_driver_bytes": 21 * GIB}, Cause.OVERSIZE),
    ({"need_bytes": 20 * GIB, "from_driver_bytes": 20 * GIB}, Cause.CAPACITY),
    # The driver had enough: only a limit of this process can have been in the way.
    ({"device_free_bytes": 5 * GIB, "limit_bytes": 39 * GIB}, Cause.LIMIT),
    ({"device_free_bytes": 5 * GIB, "limit_bytes": 40 * GIB}, Cause.UNKNOWN),
    # Whose it is, is not known; and below a tenth of the device it is what contexts take.
    (
        {
            "others_bytes": -1,
            "own_outside_bytes": -1,
            "reserved_bytes": 30 * GIB,
            "allocated_bytes": 30 * GIB,
        },
        Cause.OUTSIDE,
    ),
    ({"others_bytes": -1, "own_outside_bytes": -1}, Cause.CAPACITY),
    # Before torch 2.10 nothing says what the driver had: then the leak has to be worth the request.
    ({"device_free_bytes": -1, "leaked_bytes": 20 * GIB}, Cause.LEAK),
    ({"device_free_bytes": -1, "leaked_bytes": 2 * GIB}, Cause.CAPACITY),
    # No step before needed half of it; a leak, or pieces that are as large, come first.
    ({"before_bytes": 20 * GIB}, Cause.LARGER_STEP),
    ({"before_bytes": 20 * GIB, "free_here_bytes": 3 * GIB}, Cause.LARGER_STEP),
    ({"before_bytes": 37 * GIB}, Cause.CAPACITY),
    ({"before_bytes": 20 * GIB, "leaked_bytes": 20 * GIB}, Cause.LEAK),
    (
        {"before_bytes": 26 * GIB, "allocated_bytes": 30 * GIB, "free_here_bytes": 8 * GIB},
        Cause.FRAGMENTATION,
    ),
    # A snapshot of a process that says nothing of the device.
    (
        {"device_free_bytes": -1, "capacity_bytes": -1, "limit_bytes": -1, "free_here_bytes": 3 * GIB},
        Cause.FRAGMENTATION,
    ),
    ({"device_free_bytes": -1, "capacity_bytes": -1, "limit_bytes": -1}, Cause.UNKNOWN),
]


@pytest.mark.parametrize(("known", "expected"), CASES)
def test_the_cause_is_what_alone_would_have_made_room(known, expected):
    assert cause(replace(FULL, **known)) is expected


def test_small_pieces_are_always_there_and_not_blamed():
    room = replace(
        FULL,
        free_here_bytes=200 * MIB,
        need_bytes=200 * MIB,
        from_driver_bytes=200 * MIB,
        device_free_bytes=100 * MIB,
        own_outside_bytes=2 * GIB - 100 * MIB,
    )

    assert cause(room) is Cause.CAPACITY


def test_what_is_lacking_is_what_the_driver_had_too_few():
    assert (FULL.lacking_bytes, FULL.outside_bytes) == (1 * GIB, 1 * GIB)
    assert replace(FULL, device_free_bytes=-1).lacking_bytes == -1
    assert replace(FULL, device_free_bytes=3 * GIB).lacking_bytes == 0


def in_pieces(block_bytes: int = 10 * MIB, **fields) -> Recording:
    """100 MiB reserved in five segments, half of each free; 30 MiB asked for; 10 MiB at the driver."""
    rows = []
    for number in range(5):
        base = number << 32
        rows += [(Action.SEGMENT_ALLOC, base, 20 * MIB), (Action.ALLOC, base, block_bytes)]
    rows.append((Action.OOM, 0, 30 * MIB))
    action, address, size = zip(*rows, strict=True)
    known = {
        "trace": Trace.of(
            action=action, address=address, size=size, block_size=size, time_ns=range(1000, 12000, 1000)
        ),
        "marks": Marks.of(kind=[MarkKind.OOM], event=[11], value=[10 * MIB]),
        "device": Device(total_bytes=200 * MIB),
        "process": Process(torch="2.13.0"),
    }
    return Recording(**(known | fields))


def test_the_finding_says_cause_figures_and_what_to_do():
    (finding,) = ANALYSIS.findings(oom(in_pieces()))

    # Of 200 MiB 100 are reserved and 10 free: 90 lie outside, more than a tenth.
    assert finding.cause == "outside_torch"
    assert "20.0 MiB were lacking while 90.0 MiB lay outside of this allocator" in finding.claim
    assert (finding.evidence["free_here"], finding.evidence["lacking"]) == (50 * MIB, 20 * MIB)
    assert finding.advice


@pytest.mark.parametrize(
    ("asked_mib", "words"),
    [
        # torch takes 20 MiB from the driver for a request of 1 to 10 MiB, and whole 2 MiB beyond.
        (4, "One request for 4.00 MiB, for which torch reserves 20.0 MiB, more than half of the device"),
        (31, "One request for 31.0 MiB, for which torch reserves 32.0 MiB, more than all of the device"),
        (24, "One request for 24.0 MiB, more than half of the device"),
    ],
)
def test_a_request_is_not_confused_with_the_segment_that_torch_reserves_for_it(asked_mib, words):
    trace = Trace.of(action=[Action.OOM], size=[asked_mib * MIB], time_ns=[1000])

    (finding,) = ANALYSIS.findings(oom(in_pieces(trace=trace, device=Device(total_bytes=30 * MIB))))

    assert finding.cause == "oversize"
    assert finding.claim.endswith(words)


def test_a_failure_of_a_dry_run_would_happen_and_no_process_holds_what_lies_outside():
    (finding,) = ANALYSIS.findings(oom(in_pieces(20 * MIB, source="predicted")))

    assert finding.claim.startswith("would run out of memory: would try to allocate 30.0 MiB, ")
    assert "20.0 MiB would be lacking: the 100 MiB allocated fill the device" in finding.claim
    assert "beside the 90.0 MiB that the dry run keeps" in finding.claim
    assert "were lacking" not in finding.claim
    assert finding.cause == "capacity"
    assert str(finding.advice).startswith("Shrink what is allocated at that moment")


def test_a_dry_run_that_would_fail_in_pieces_does_not_blame_the_context_that_every_card_has():
    (finding,) = ANALYSIS.findings(oom(in_pieces(source="predicted")))

    # 50 MiB are free in pieces, 20 are lacking.
    assert finding.cause == "fragmentation"


def test_what_leaked_after_a_failure_is_not_said_to_have_leaked_before_it():
    rows, starts = [], []
    for number in range(30):
        starts.append(len(rows))
        rows += [(Action.ALLOC, number << 30, MIB)]
        rows += [(Action.OOM, 0, 20 * MIB)] if number == 10 else []
    action, address, size = zip(*rows, strict=True)
    trace = Trace.of(action=action, address=address, size=size, block_size=size)
    steps = Steps.of(index=range(30), start_event=starts, end_event=[*starts[1:], len(rows)])

    (room,) = oom(Recording(trace=trace, steps=steps)).rooms

    # Each step leaves 1 MiB: 10 had left it, and the eleventh had begun to.
    assert 0 < room.leaked_bytes <= 10 * MIB


def test_what_the_driver_had_is_found_by_its_time_where_another_thread_was_quicker():
    late = Marks.of(kind=[MarkKind.OOM], event=[13], time_ns=[11_000], value=[10 * MIB])
    other = Marks.of(kind=[MarkKind.OOM], event=[13], time_ns=[9_000], value=[10 * MIB])

    assert oom(in_pieces(marks=late)).device_free_bytes.tolist() == [10 * MIB]
    assert oom(in_pieces(marks=other)).device_free_bytes.tolist() == [-1]


def counted(process: list[int], device: list[int]) -> Counters:
    return Counters.of(
        time_ns=[500, 2500],
        event=[-1, -1],
        reserved_bytes=[MIB, 20 * MIB],
        process_used_bytes=[process[0] + MIB, process[1]],
        device_used_bytes=[device[0] + MIB, device[1]],
        device_total_bytes=[200 * MIB] * 2,
    )


def test_samples_tell_whose_it_is():
    # Outside of the allocator 5 MiB at first, then 65; nobody else.
    own = in_pieces(counters=counted([5 * MIB, 85 * MIB], [5 * MIB, 85 * MIB]))
    # 5 MiB of its own; another process with 85 MiB.
    other = in_pieces(counters=counted([5 * MIB, 25 * MIB], [5 * MIB, 110 * MIB]))
    # 90 MiB of its own from the beginning, nobody else: what was lacking was free in pieces.
    nobody = in_pieces(counters=counted([90 * MIB, 110 * MIB], [90 * MIB, 110 * MIB]))

    causes = [ANALYSIS.findings(oom(each))[0].cause for each in (own, other, nobody)]
    assert causes == ["non_torch_growth", "other_process", "fragmentation"]


GROWS_NS, FAILS_NS = 8_000, 11_000


def sampled(who: str, times_ns: list[int]) -> Counters:
    """Sample a device where this process has 20 MiB, others 10, and *who* takes 60 more at ``GROWS_NS``."""

    def outside(party: str, time_ns: int) -> int:
        return {"own": 20, "others": 10}[party] + 60 * (party == who and time_ns >= GROWS_NS)

    # A segment of 20 MiB comes every 2000 ns from 1000 on, until the failure.
    reserved = [20 * sum(start <= time_ns for start in range(1000, 10_000, 2000)) for time_ns in times_ns]
    process = [inside + outside("own", time_ns) for inside, time_ns in zip(reserved, times_ns, strict=True)]
    used = [ours + outside("others", time_ns) for ours, time_ns in zip(process, times_ns, strict=True)]
    in_mib = {"reserved_bytes": reserved, "process_used_bytes": process, "device_used_bytes": used}
    in_bytes = {name: [value * MIB for value in column] for name, column in in_mib.items()}
    return Counters.of(time_ns=times_ns, device_total_bytes=[200 * MIB] * len(times_ns), **in_bytes)


@pytest.mark.parametrize(("who", "named"), [("own", "non_torch_growth"), ("others", "other_process")])
@pytest.mark.parametrize(
    ("times_ns", "is_seen"),
    [
        ([1500, GROWS_NS - 1], False),
        ([1500, GROWS_NS], True),
        ([1500, GROWS_NS - 1, FAILS_NS + 1], True),
        ([1500, GROWS_NS - 1, FAILS_NS + 10**9], True),
        ([1500, GROWS_NS - 1, FAILS_NS + 10**9 + 1], False),
    ],
)
def test_what_no_sample_saw_is_of_no_party(who, named, times_ns, is_seen):
    made = in_pieces(counters=sampled(who, times_ns))

    (room,), (finding,) = oom(made).rooms, ANALYSIS.findings(oom(made))

    seen = {"own": 20 + 60 * is_seen * (who == "own"), "others": 10 + 60 * is_seen * (who == "others")}
    assert (room.own_outside_bytes, room.others_bytes) == (seen["own"] * MIB, seen["others"] * MIB)
    assert room.unattributed_bytes == finding.evidence["unattributed"] == 60 * (not is_seen) * MIB
    assert finding.cause == (named if is_seen else "outside_torch")
    unseen = (
        "90.0 MiB lay outside of this allocator: other processes, or libraries of this one; no sample says"
    )
    assert (f"{unseen} whose 60.0 MiB of it are" in finding.claim) is not is_seen


def test_what_came_and_went_between_two_samples_is_of_no_party():
    # 30 MiB at both samples, 90 at the failure.
    counters = sampled("nobody", [1500, FAILS_NS - 1, FAILS_NS + 1])

    (room,) = oom(in_pieces(counters=counters)).rooms

    assert (room.own_outside_bytes, room.others_bytes, room.unattributed_bytes) == (
        20 * MIB,
        10 * MIB,
        60 * MIB,
    )


def test_samples_of_torch_alone_or_beside_a_moving_allocator_say_nothing_of_what_lies_outside():
    columns = dict(sampled("own", [1500, GROWS_NS, FAILS_NS - 2, FAILS_NS - 1]).columns())
    columns["process_used_bytes"] = [*columns["process_used_bytes"][:2], 60 * MIB, -1]
    moved = Counters.of(**(columns | {"reserved_drift_bytes": [0, 0, 40 * MIB, -1]}))

    (room,) = oom(in_pieces(counters=moved)).rooms

    assert (room.own_outside_bytes, room.others_bytes, room.unattributed_bytes) == (80 * MIB, 10 * MIB, 0)


@pytest.mark.parametrize(("late_ns", "others"), [(20_000, 85 * MIB), (2 * 10**9, -1)])
def test_what_others_took_after_the_failure_is_not_counted_at_it(late_ns, others):
    # Others have 180 MiB then, this process 5. At the failure 200 were on the device, 10 free, 100 reserved.
    late = counted([5 * MIB, 25 * MIB], [185 * MIB, 110 * MIB])
    late = Counters.of(**(dict(late.columns()) | {"time_ns": [late_ns, late_ns + 1000]}))

    (room,) = oom(in_pieces(counters=late)).rooms

    # The 95 MiB more may be of either.
    assert (room.own_outside_bytes, room.others_bytes) == (min(others, 0), others)


def test_what_the_driver_keeps_for_itself_is_of_no_process():
    # NVML's total has it, torch's has not.
    counters = counted([5 * MIB, 25 * MIB], [5 * MIB, 25 * MIB])
    counters = Counters.of(**(dict(counters.columns()) | {"device_total_bytes": [260 * MIB] * 2}))

    (room,) = oom(in_pieces(counters=counters)).rooms

    assert (room.capacity_bytes, room.outside_bytes) == (200 * MIB, 90 * MIB)


def test_a_full_device_reports_what_was_in_use_and_from_which_line():
    builder = StackBuilder()
    stacks = [builder.add([(name, f"/home/me/{name}.py", 7)]) for name in ("model", "data")]
    sizes = (60, 30, 50)
    rows = [
        (action, number << 32, size * MIB, stacks[number == 1])
        for number, size in enumerate(sizes)
        for action in (Action.SEGMENT_ALLOC, Action.ALLOC)
    ]
    rows.append((Action.OOM, 0, 70 * MIB, stacks[0]))
    action, address, size, stack_id = zip(*rows, strict=True)
    recording = Recording(
        trace=Trace.of(action=action, address=address, size=size, block_size=size, stack_id=stack_id),
        stacks=builder.build(),
        marks=Marks.of(kind=[MarkKind.OOM], event=[len(rows)], value=[50 * MIB]),
        labels=Labels.of(
            address=[0, 2 << 32], event=[2, 6], category=[Category.PARAMETER, Category.ACTIVATION]
        ),
        device=Device(total_bytes=200 * MIB),
    )

    (finding,) = ANALYSIS.findings(oom(recording))

    assert finding.cause == "capacity"
    assert finding.advice == (
        "Shrink what is allocated at that moment: 60.0 MiB parameter, 50.0 MiB activation; "
        "110 MiB of it from me/model.py:7"
    )
    held = {name: n for name, n in finding.evidence.items() if name.startswith("in_use_")}
    assert held == {
        "in_use_parameter": 60 * MIB, "in_use_activation": 50 * MIB, "in_use_unknown": 30 * MIB
    }  # fmt: skip


def test_a_leak_that_fills_the_device_is_the_cause():
    # 40 steps; each keeps 2 MiB, allocated at one line; the last asks for 30 MiB.
    builder = StackBuilder()
    line = builder.add([("train", "/home/me/train.py", 12)])
    rows, starts = [], []
    for number in range(40):
        starts.append(len(rows))
        rows += [
            (Action.SEGMENT_ALLOC, number << 32, 2 * MIB, 0),
            (Action.ALLOC, number << 32, 2 * MIB, line),
        ]
    rows.append((Action.OOM, 0, 30 * MIB, line))
    action, address, size, stack_id = zip(*rows, strict=True)
    trace = Trace.of(action=action, address=address, size=size, block_size=size, stack_id=stack_id)
    recording = Recording(
        trace=trace,
        stacks=builder.build(),
        steps=Steps.of(index=range(40), start_event=starts, end_event=[*starts[1:], len(rows)]),
        marks=Marks.of(kind=[MarkKind.OOM], event=[len(rows)], value=[10 * MIB]),
        device=Device(total_bytes=100 * MIB),
    )

    (finding,) = ANALYSIS.findings(oom(recording))

    assert finding.cause == "leak"
    assert "20.0 MiB were lacking" in finding.claim


@pytest.mark.parametrize(
    ("request_bytes", "held", "other"),
    [(MIB // 2, 20 * MIB, "requests above 1 MiB"), (20 * MIB, 2 * MIB, "requests up to 1 MiB")],
)
def test_free_bytes_of_the_other_size_class_are_not_attributed_to_other_streams(request_bytes, held, other):
    # Only stream 0 exists. Each segment keeps a little in use, so none of it can go back to the driver.
    rows = []
    for number in range(20):
        base = number << 32
        rows += [(Action.SEGMENT_ALLOC, base, held), (Action.ALLOC, base, held // 8)]
    rows.append((Action.OOM, 0, request_bytes))
    action, address, size = zip(*rows, strict=True)
    trace = Trace.of(action=action, address=address, size=size, block_size=size)
    made = Recording(
        trace=trace,
        marks=Marks.of(kind=[MarkKind.OOM], event=[len(rows)], value=[0]),
        device=Device(total_bytes=20 * held),
        process=Process(torch="2.13.0"),
    )

    (room,) = oom(made).rooms
    (finding,) = ANALYSIS.findings(oom(made))

    free = 20 * (held - held // 8)
    assert (room.free_here_bytes, room.free_other_streams_bytes, room.free_other_sizes_bytes) == (0, 0, free)
    assert finding.cause == "size_class"
    assert f"were free in segments that serve only {other}" in finding.claim


def test_blocks_that_wait_for_a_stream_serve_no_request_yet():
    rows = [
        (Action.SEGMENT_ALLOC, 0, 200 * MIB),
        (Action.ALLOC, 0, 100 * MIB),
        (Action.ALLOC, 100 * MIB, 100 * MIB),
        (Action.FREE_REQUESTED, 0, 100 * MIB),
        (Action.OOM, 0, 30 * MIB),
    ]
    action, address, size = zip(*rows, strict=True)
    made = in_pieces(
        trace=Trace.of(action=action, address=address, size=size, block_size=size),
        marks=Marks.of(kind=[MarkKind.OOM], event=[5], value=[0]),
    )

    (room,) = oom(made).rooms

    assert (room.free_other_streams_bytes, room.free_other_sizes_bytes) == (100 * MIB, 0)
    assert ANALYSIS.findings(oom(made))[0].cause == "other_stream"


LIMITED = {
    "device_free_bytes": 30 * GIB,
    "limit_bytes": 10 * GIB,
    "reserved_bytes": 9 * GIB,
    "allocated_bytes": 9 * GIB,
}
"""9 GiB are reserved of the 10 that the process may reserve; 2 GiB more were requested, the driver had 30."""


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, Cause.LIMIT),
        ({"free_here_bytes": 2 * GIB, "allocated_bytes": 7 * GIB}, Cause.FRAGMENTATION),
        ({"free_here_bytes": 1 * GIB - 1}, Cause.LIMIT),
        ({"free_private_bytes": 2 * GIB}, Cause.PRIVATE_POOL),
        ({"leaked_bytes": 5 * GIB}, Cause.LEAK),
        # The driver had enough: what others hold made no difference.
        ({"others_bytes": 20 * GIB}, Cause.LIMIT),
        ({"own_outside_growth_bytes": 5 * GIB}, Cause.LIMIT),
    ],
)
def test_below_the_limit_of_the_process_the_cause_is_what_would_have_made_room_there(known, expected):
    assert cause(replace(FULL, **(LIMITED | known))) is expected


def test_a_limit_is_named_with_its_bytes_and_what_helps():
    limit = Note("limit", "110 MiB allowed", 110 * MIB)
    marks = Marks.of(kind=[MarkKind.OOM], event=[11], value=[90 * MIB])
    (finding,) = ANALYSIS.findings(oom(in_pieces(notes=(limit,), marks=marks)))

    # 100 MiB are reserved, half of it free in pieces; 30 more were requested, 110 are allowed.
    assert finding.cause == "fragmentation"
    assert "20.0 MiB were lacking below the limit of 110 MiB" in finding.claim
    assert "tried to allocate 30.0 MiB" in finding.claim
    assert finding.advice


def test_the_context_of_the_process_itself_is_no_growth():
    # The driver is asked before CUDA is initialized, and after the first allocations: 60 MiB are the context.
    before = dict(counted([0, 80 * MIB], [0, 80 * MIB]).columns())
    first = Counters.of(**(before | {"reserved_bytes": [0, 20 * MIB], "process_used_bytes": [0, 80 * MIB]}))

    (room,) = oom(in_pieces(counters=first)).rooms

    assert (room.own_outside_bytes, room.own_outside_growth_bytes) == (60 * MIB, 0)
