"""Snapshots of every torch become the same columns; what is missing is noted, what is wrong refused."""

from typing import Any

import pytest

from vramscope.allocator.settings import TieBreak
from vramscope.allocator.torch_history import DeviceHistory, histories
from vramscope.errors import FormatError
from vramscope.model.marks import MarkKind, Phase
from vramscope.model.snapshot import BlockState
from vramscope.model.stacks import StackBuilder
from vramscope.model.trace import Action

FRAMES = [
    {"filename": "model.py", "name": "forward", "line": 3},
    {"filename": "train.py", "name": "main", "line": 9},
]


def event(action: str, addr: int = 4096, size: int = 100, time_us: int = 10, **more: Any) -> dict[str, Any]:
    """A trace entry of torch 2.12."""
    entry = {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": time_us, "pool_id": (0, 0)}
    return {**entry, "frames": FRAMES, **more}


def block(size: int, state: str = "active_allocated", **more: Any) -> dict[str, Any]:
    """A block of torch 2.0, but for what is added."""
    return {"size": size, "requested_size": max(size - 12, 1), "state": state, "frames": FRAMES, **more}


def segment(address: int, *blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A segment of torch 2.0, but for what is added."""
    total = sum(piece["size"] for piece in blocks)
    found = {"device": 0, "address": address, "total_size": total, "stream": 0, "segment_type": "small"}
    return {**found, "blocks": list(blocks), **more}


def snapshot(
    events: list[Any] | None = None, segments: list[Any] | None = None, **more: Any
) -> dict[str, Any]:
    return {"segments": segments or [], "device_traces": [events or []], **more}


def only(data: Any, **options: Any) -> DeviceHistory:
    found, _ = histories(data, StackBuilder(), **options)
    assert len(found) == 1
    return found[0]


def codes(data: Any) -> set[str]:
    found, notes = histories(data, StackBuilder())
    return {note.code for note in (*notes, *(note for history in found for note in history.notes))}


def test_events_become_columns():
    trace = only(
        snapshot(
            [
                event("segment_alloc", 4096, 2048),
                event("alloc", stream=7),
                event("free_requested", time_us=11),
            ]
        )
    ).trace

    assert trace.action.tolist() == [Action.SEGMENT_ALLOC, Action.ALLOC, Action.FREE_REQUESTED]
    assert trace.address.tolist() == [4096] * 3
    assert trace.size.tolist() == [2048, 100, 100]
    assert trace.block_size.tolist() == [0, 0, 0]
    assert trace.stream.tolist() == [0, 7, 0]
    assert trace.time_ns.tolist() == [10_000, 10_000, 11_000]


def test_equal_stacks_are_one_whether_shared_or_not():
    stacks = StackBuilder()
    copies = [dict(frame) for frame in FRAMES]
    events = [
        event("alloc"),
        event("alloc", frames=copies),
        event("alloc", frames=[]),
        event("alloc", frames=FRAMES[1:]),
    ]

    found, _ = histories(snapshot(events), stacks)

    trace = found[0].trace
    assert trace.stack_id[0] == trace.stack_id[1] != 0
    assert trace.stack_id[2] == 0
    assert [tuple(frame) for frame in stacks.build().frames(int(trace.stack_id[0]))] == [
        ("forward", "model.py", 3),
        ("main", "train.py", 9),
    ]
    assert stacks.build().parent[trace.stack_id[0]] == trace.stack_id[3]


def test_the_final_state_is_in_order_of_address():
    held = only(
        snapshot(
            segments=[
                segment(8192, block(512, address=8704), block(512, "inactive", address=8192)),
                segment(4096, block(1024, "active_pending_free", address=4096), segment_type="large"),
            ]
        )
    ).final

    assert held.segments.address.tolist() == [4096, 8192]
    assert held.segments.is_large.tolist() == [True, False]
    assert held.blocks.segment.tolist() == [0, 1, 1]
    assert held.blocks.address.tolist() == [4096, 8192, 8704]
    assert held.blocks.state.tolist() == [BlockState.PENDING_FREE, BlockState.INACTIVE, BlockState.ALLOCATED]


def test_an_inactive_block_has_neither_request_nor_owner():
    # torch leaves there what the block served last.
    blocks = only(snapshot(segments=[segment(0, block(512, "inactive", address=0))])).final.blocks

    assert (blocks.requested_size[0], blocks.stack_id[0]) == (0, 0)


def test_the_docstrings_word_for_a_pending_block_counts_too():
    blocks = only(snapshot(segments=[segment(0, block(512, "active_awaiting_free", address=0))])).final.blocks

    assert blocks.state[0] == BlockState.PENDING_FREE


def test_blocks_without_address_follow_one_another():
    # torch 2.0
    blocks = only(
        snapshot(segments=[segment(100, block(5), block(7)), segment(1000, block(1), block(2))])
    ).final.blocks

    assert blocks.address.tolist() == [100, 105, 1000, 1001]


def test_the_older_history_of_blocks_tells_request_and_owner():
    old = {
        "size": 512,
        "state": "active_allocated",
        "history": [{"addr": 0, "real_size": 3, "frames": FRAMES}],
    }
    free = {"size": 512, "state": "inactive", "history": []}

    blocks = only(snapshot(segments=[segment(0, old, free)])).final.blocks

    assert blocks.requested_size.tolist() == [3, 0]
    assert blocks.stack_id[0] != 0


def test_a_bare_list_of_segments_is_a_snapshot_without_a_trace():
    data = [segment(0, block(512, address=0), device=1)]

    assert only(data).device == 1
    assert codes(data) == {"no_trace"}


def test_each_device_that_did_something_has_its_own_history():
    data = {"segments": [segment(0, block(512), device=2)], "device_traces": [[], [event("alloc")], [], []]}

    found, _ = histories(data, StackBuilder())

    assert [(one.device, len(one.trace), len(one.final.blocks)) for one in found] == [(1, 1, 0), (2, 0, 1)]


def test_an_empty_snapshot_says_so():
    assert "empty" in codes(snapshot())


def test_without_a_clock_the_times_are_zero_and_a_note_says_so():
    old = event("alloc")
    del old["time_us"], old["pool_id"]

    assert not only(snapshot([old])).trace.has_clock
    assert "no_clock" in codes(snapshot([old]))


def test_missing_stacks_are_counted():
    bare = event("alloc")
    del bare["frames"]

    found = only(snapshot([bare, event("free_requested"), event("snapshot", addr=0, frames=[])]))

    assert [(note.code, note.value) for note in found.notes] == [("no_stack", 1)]
    assert found.notes[0].text.startswith("1 allocation or free was recorded without a call stack")


def test_what_a_later_torch_adds_is_ignored():
    found = only(snapshot([event("alloc", forward_frames=["  File …"], novel={"a": 1})], novelty=[1]))

    assert len(found.trace) == 1
    assert found.notes == ()


def test_events_of_an_unknown_kind_are_left_out_and_noted():
    found = only(snapshot([event("alloc"), event("teleport"), event("oom", device_free=5)]))

    assert found.trace.action.tolist() == [Action.ALLOC, Action.OOM]
    assert [(note.code, note.value) for note in found.notes] == [("unknown_action", 1)]
    assert "teleport" in found.notes[0].text


def test_an_oom_is_a_mark_with_what_was_free():
    oom = {"action": "oom", "device_free": 77, "size": 1024, "stream": 0, "time_us": 12, "frames": FRAMES}

    marks = only(snapshot([event("alloc"), oom])).marks

    assert (marks.kind[0], marks.value[0], marks.event[0]) == (MarkKind.OOM, 77, 2)


def test_a_ring_out_of_order_is_sorted_and_noted():
    found = only(
        snapshot(
            [event("alloc", 1, time_us=20), event("alloc", 2, time_us=10), event("alloc", 3, time_us=10)]
        )
    )

    assert found.trace.address.tolist() == [2, 3, 1]
    assert [note.code for note in found.notes] == ["reordered"]


def test_pools_are_numbered_and_the_default_is_0():
    found = only(
        snapshot(
            [event("alloc"), event("alloc", pool_id=(0, 3)), event("alloc", pool_id=[2, 0])],
            [segment(0, block(512), segment_pool_id=(2, 0))],
        )
    )

    assert [found.pools[i] for i in found.trace.pool] == [(0, 0), (0, 3), (2, 0)]
    assert found.pools[found.final.segments.pool[0]] == (2, 0)
    assert found.pools[0] == (0, 0)


def test_events_of_older_torch_get_the_pool_of_their_segment():
    events = [event("alloc", 10), event("alloc", 600), event("alloc", 5000)]
    for entry in events:
        del entry["pool_id"]

    found = only(snapshot(events, [segment(0, block(512)), segment(512, block(512), segment_pool_id=(0, 1))]))

    assert found.trace.pool.tolist() == [0, 1, 0]


def test_an_address_that_the_driver_gave_before_was_no_part_of_the_pool_then():
    moves = ("segment_alloc", "alloc", "free_requested", "free_completed", "segment_free")
    events = [event(move, 512) for move in (*moves, "segment_alloc", "alloc")]
    for entry in events:
        del entry["pool_id"]

    found = only(snapshot(events, [segment(512, block(512), segment_pool_id=(0, 1))]))

    assert found.trace.pool.tolist() == [0, 0, 0, 0, 0, 1, 1]


def annotation(name: str, stage: str, time_us: int, device: int = 0) -> dict[str, Any]:
    return {"name": name, "stage": stage, "time_us": time_us, "device": device}


def test_torchs_own_annotations_are_phases():
    names = (
        "Optimizer.step#AdamW.step",
        "Optimizer.zero_grad#SGD.zero_grad",
        "enumerate(DataLoader)#_It.__next__",
        "mine",
    )
    notes = [annotation(name, stage, 10) for name in names for stage in ("START", "END")]

    marks = only(snapshot([event("alloc")], external_annotations=notes)).marks

    assert marks.kind.tolist() == [MarkKind.PHASE_BEGIN, MarkKind.PHASE_END] * 4
    assert marks.phase.tolist()[::2] == [Phase.OPTIMIZER, Phase.ZERO_GRAD, Phase.DATA, Phase.USER]
    assert [marks.names[i] for i in marks.name[::2]] == ["AdamW", "SGD", "_It", "mine"]


def test_a_profiler_step_ends_a_step():
    notes = [annotation("ProfilerStep#3", "START", 10), annotation("ProfilerStep#3", "END", 11)]

    marks = only(snapshot([event("alloc"), event("alloc", time_us=12)], external_annotations=notes)).marks

    assert (marks.kind.tolist(), marks.event.tolist()) == ([MarkKind.STEP], [1])


def test_annotations_stand_between_the_events_of_their_device():
    events = [event("alloc", time_us=time) for time in (10, 20, 20, 30)]
    notes = [annotation("a", "START", 20), annotation("a", "END", 20), annotation("b", "START", 15, device=1)]

    marks = only(snapshot(events, external_annotations=notes)).marks

    # Both stamps are of the microsecond of two events: they belong inside.
    assert marks.event.tolist() == [1, 3]


def test_instants_of_marks_never_go_back():
    notes = [annotation("a", "END", 20), annotation("b", "START", 20)]

    marks = only(snapshot([event("alloc", time_us=20)], external_annotations=notes)).marks

    assert marks.event.tolist() == [1, 1]


@pytest.mark.parametrize(("version", "expected"), [("2.11.0", TieBreak.ADDRESS), ("2.12.0", TieBreak.BLOCK)])
def test_the_version_given_decides_the_rules(version, expected):
    assert only(snapshot([event("alloc")]), torch=version).settings.tie_break is expected


def test_the_version_is_guessed_by_what_each_added():
    older = event("alloc")
    del older["pool_id"]

    assert only(snapshot([older])).settings.tie_break is TieBreak.ADDRESS
    assert only(snapshot([event("alloc")])).settings.tie_break is TieBreak.BLOCK
    newest = snapshot([event("alloc")], allocator_settings={"max_round_threshold": 0})
    assert only(newest).settings.tie_break is TieBreak.SEGMENT


def test_segments_that_overlap_or_are_not_filled_are_noted():
    overlapping = [segment(0, block(512)), segment(256, block(512))]
    gappy = [segment(0, block(512, address=0), block(512, address=1024), total_size=1536)]
    short = [segment(0, block(512, address=0), total_size=1024)]
    hollow = [segment(0, total_size=512)]

    assert "overlapping" in codes(snapshot(segments=overlapping))
    for crooked in (gappy, short, hollow):
        assert "crooked" in codes(snapshot(segments=crooked))
    assert codes(snapshot([event("alloc")], [segment(0, block(512)), segment(512, block(512))])) == set()


@pytest.mark.parametrize(("data", "path"), [
    (5, "no memory snapshot"),
    ({"traceEvents": []}, "no memory snapshot"),
    ({"segments": {}}, "segments is an object, not a list"),
    ({"segments": [7]}, "segments[0] is an integer, not an object"),
    ({"segments": [{"address": 1}]}, "segments[0] has no 'total_size'"),
    (snapshot(segments=[segment(-1)]), "segments[0].address is out of range"),
    (snapshot(segments=[segment(2**70)]), "segments[0].address is out of range"),
    (
        snapshot(segments=[segment(0), segment(0, block(1), {"size": 1.5}, total_size=3)]),
        "segments[1].blocks[1].size is of type float",
    ),
    (snapshot(segments=[segment(0, block(1, frames=3))]), "segments[0].blocks[0].frames is an integer"),
    (snapshot(segments=[segment(0, block(1, frames=[3]))]), "a frame of a stack is an integer"),
    (snapshot(segments=[segment(0, block(1, frames=[{"line": "3"}]))]), "the line of a frame is a text"),
    (snapshot(segments=[segment(0, segment_pool_id=(1, 2, 3))]), "segment_pool_id is not a pair"),
    ({"device_traces": [[], 5]}, "device_traces[1] is an integer"),
    (snapshot([event("alloc"), {"size": 1}]), "device_traces[0][1] has no 'action'"),
    (snapshot([event("alloc", size="1")]), "device_traces[0][0].size is a text"),
    (snapshot([event("alloc", size=True)]), "device_traces[0][0].size is true or false"),
    (snapshot([event(["alloc"])]), "device_traces[0][0].action is a list"),
    (snapshot([event("alloc", time_us=2**62)]), "beyond the year 2200"),
    (
        snapshot([event("alloc")], external_annotations=[{"name": 1}]),
        "external_annotations[0].name is an integer",
    ),
    (snapshot([event("alloc")], allocator_settings=[]), "allocator_settings is a list"),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_what_is_no_snapshot_is_refused_with_the_place(data, path):
    with pytest.raises(FormatError) as caught:
        histories(data, StackBuilder())

    assert path in str(caught.value)


def test_texts_of_the_program_become_marks_at_their_events():
    history = only(
        snapshot(
            [
                event("segment_alloc", 4096, 2048, time_us=10, user_metadata=""),
                event("alloc", 4096, 512, time_us=11, user_metadata=""),
                event("annotate", 4096, 512, time_us=11, user_metadata="first"),
                event("alloc", 4608, 512, time_us=12, user_metadata={"layer": 3}),
                event("free_requested", 4608, 512, time_us=13, user_metadata="thread's"),
                event("alloc", 5120, 512, time_us=14, user_metadata=""),
            ]
        )
    )

    marks = history.marks
    names = [marks.names[each] for each in marks.name.tolist()]
    rows = list(zip(marks.kind.tolist(), marks.event.tolist(), marks.value.tolist(), names, strict=True))
    assert len(history.trace) == 5
    assert rows == [
        (MarkKind.ANNOTATION, 2, 4096, "first"),
        (MarkKind.METADATA, 2, 0, '{"layer":3}'),
        (MarkKind.METADATA, 4, 0, ""),
    ]


def test_an_annotation_is_no_unknown_action_and_ours_is_no_text_of_the_programs():
    data = snapshot(
        [
            event("alloc", 4096, 512, user_metadata="vramscope thread 1"),
            event("annotate", 4096, 512, user_metadata="x"),
        ]
    )

    assert "unknown_action" not in codes(data)
    assert [only(data).marks.names[each] for each in only(data).marks.name] == ["x"]


def test_the_block_in_front_of_a_wished_address_is_allocated_and_freed_like_any():
    inner = {"internal_metadata": "mallocWithAddress", "user_metadata": ""}
    history = only(
        snapshot(
            [
                event("segment_alloc", 4096, 2048, time_us=10, user_metadata=""),
                event("alloc", 4096, 1024, time_us=11, **inner),
                event("alloc", 5120, 512, time_us=12, user_metadata=""),
                event("free_requested", 4096, 1024, time_us=13, **inner),
                event("free_completed", 4096, 1024, time_us=13, **inner),
            ]
        )
    )

    assert [Action(each).name for each in history.trace.action] == [
        "SEGMENT_ALLOC",
        "ALLOC",
        "ALLOC",
        "FREE_REQUESTED",
        "FREE_COMPLETED",
    ]
    assert not len(history.marks)
