"""A search finds exactly the allocations that it describes, and points at what it does not understand."""

from dataclasses import replace

import numpy as np
import pytest

import vramscope
from vramscope.analysis.allocations import SearchError, allocations, parse
from vramscope.analysis.allocations.language import Field
from vramscope.model.marks import Category, Labels, MarkKind, Marks, Phase
from vramscope.model.recording import Recording
from vramscope.model.stacks import StackBuilder
from vramscope.model.trace import Action, Trace
from vramscope.steps import resolve

A, R, C = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED


@pytest.fixture
def world() -> Recording:
    """Return three allocations, events 0, 1 and 4, of 512, 2,048 and 4,096 bytes; one is freed after 1 µs."""
    stacks = StackBuilder()
    inner = stacks.add(
        [
            ("softmax", "/torch/ops.py", 3),
            ("Attention.forward", "/home/net/model.py", 13),
            ("main", "/home/train.py", 60),
        ]
    )
    other = stacks.add([("softmax_backward", "/home/optim.py", 4), ("main", "/home/train.py", 61)])
    moves = [(A, 1, 500, 0), (A, 2, 2000, inner), (R, 2, 2000, 0), (C, 2, 2000, 0), (A, 3, 4000, other)]
    trace = Trace.of(
        action=[move[0] for move in moves],
        address=[4096 * move[1] for move in moves],
        size=[move[2] for move in moves],
        block_size=[-(-move[2] // 512) * 512 for move in moves],
        stack_id=[move[3] for move in moves],
        stream=[0, 0, 0, 0, 7],
        time_ns=[1000 * (i + 1) for i in range(len(moves))],
    )
    marks = Marks.of(
        kind=[
            MarkKind.PHASE_BEGIN,
            MarkKind.PHASE_END,
            MarkKind.STEP,
            MarkKind.PHASE_BEGIN,
            MarkKind.PHASE_END,
        ],
        phase=[Phase.FORWARD, Phase.FORWARD, Phase.OTHER, Phase.BACKWARD, Phase.BACKWARD],
        time_ns=[500, 4500, 4600, 4700, 5500],
        event=[0, 4, 4, 4, 5],
        thread=[1] * 5,
    )
    steps, phases = resolve(marks, len(moves), 5500)
    labels = Labels.of(event=[1], address=[4096], category=[Category.PARAMETER], names=("",))
    return Recording(
        trace=trace, stacks=stacks.build(), marks=marks, steps=steps, phases=phases, labels=labels
    )


@pytest.mark.parametrize(
    ("text", "events"),
    [
        ("", [0, 1, 4]),
        ("attention", [1]),
        ("SOFTMAX", [1, 4]),
        ('"softmax"', [1]),
        ('"optim.py"', [4]),
        ('"ptim.py"', []),
        ("model.py:13", [1]),
        ("net/model.py:13", [1]),
        ("model.py:14", []),
        ("train.py:60-61", [1, 4]),
        ("train.py:61", [4]),
        ("file:net/*", []),
        ("file:*net/*", [1]),
        ("function:main", [1, 4]),
        ("category:parameter", [0]),
        ("parameter", [0]),
        ("category:para", [0]),
        ("phase:forward", [0, 1]),
        ("phase:backward", [4]),
        ("-phase:forward", [4]),
        ("stream:7", [4]),
        ("stream:0..6", [0, 1]),
        ("size>512", [1, 4]),
        ("size>=512 size<=2KiB", [0, 1]),
        ("=4k", [4]),
        ("life<1us", []),
        ("life<=1us", [1]),
        ("alive", [0, 4]),
        ("alive -size>1k", [0]),
        ("before", []),
        ("-softmax", [0]),
    ],
)  # fmt: skip
def test_every_term_holds_for_what_is_found(world: Recording, text: str, events: list[int]) -> None:
    assert sorted(allocations(world, text).alloc_event.tolist()) == events


def test_steps_are_those_of_the_program(world: Recording) -> None:
    of_event = {event: i for i in range(2) for event in allocations(world, f"step:{i}").alloc_event.tolist()}

    assert len(world.steps) >= 1
    for row in range(len(world.steps)):
        number = int(world.steps.index[row])
        inside = range(int(world.steps.start_event[row]), int(world.steps.end_event[row]))
        assert {event for event, step in of_event.items() if step == number} == {0, 1, 4} & set(inside)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("softmax size> alive", "size>"),
        ("size>9parsec", "size>9parsec"),
        ("life<soon", "life<soon"),
        ("size>>2", "size>>2"),
        ("a foo:bar b", "foo:bar"),
        ("category:foo", "category:foo"),
        ("phase:nowhere", "phase:nowhere"),
        ("step:", "step:"),
        ("step:three", "step:three"),
        ("module:", "module:"),
        ('a "never closed', '"never closed'),
    ],
)
def test_what_is_not_understood_is_pointed_at(world: Recording, text: str, wrong: str) -> None:
    with pytest.raises(SearchError) as caught:
        allocations(world, text)

    assert text[caught.value.start : caught.value.end] == wrong


@pytest.mark.parametrize("text", ["at::native::add", "<script>", "\u202e", "C++", "-"])
def test_names_of_functions_are_words(text: str) -> None:
    (term,) = parse(text)

    assert (term.field, term.value) == (Field.WORD, text.lower())


def test_a_text_without_end_is_refused() -> None:
    with pytest.raises(SearchError, match="longer than 2,000 letters"):
        parse("a" * 5000)


def test_modules_are_found_by_pattern_with_what_is_in_them() -> None:
    recording = vramscope.load("sample_traces/transformer").recordings[0]
    found, every = (recording.allocations(text) for text in ("module:blocks.*.mlp", ""))
    paths = {found.paths[i] for i in found.module.tolist()}

    assert paths
    assert all(path.startswith("blocks.") and path.split(".")[2:3] == ["mlp"] for path in paths)
    rest = recording.allocations("-module:blocks.*.mlp")
    assert len(found) + len(rest) == len(every)
    assert found.total_bytes + rest.total_bytes == int(recording.lifetimes().block_size.sum())


def test_nothing_is_found_in_an_empty_recording() -> None:
    assert len(allocations(replace(Recording()), "attention module:a step:1 phase:backward")) == 0


def test_the_largest_block_is_first(world: Recording) -> None:
    assert np.all(np.diff(allocations(world).block_bytes) <= 0)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("live:0", []),
        ("live:1", [512]),
        ("live:2", [2048, 512]),
        ("live:3", [512]),
        ("live:5", [4096, 512]),
        ("live:peak", [4096, 512]),
        ("live:2 -live:5", [2048]),
        ("address:8192", [2048]),
        ("address:0x27ff", [2048]),
        ("address:10240", []),
        ("address:0xffffffffffffffff", []),
        ("line:model.py:13", [2048]),
        ("line:net/model.py:13", [2048]),
        ("line:train.py:60", []),
        ("line:optim.py:4", [4096]),
    ],
)
def test_what_is_live_where_it_lies_and_whose_line_it_is(
    world: Recording, text: str, sizes: list[int]
) -> None:
    assert allocations(world, text).block_bytes.tolist() == sizes


@pytest.mark.parametrize("text", ["live:6", "live:now", "live:", "address:here", "address:peak", "line:13"])
def test_an_instant_an_address_or_a_line_that_is_none_is_refused(world: Recording, text: str) -> None:
    with pytest.raises(SearchError) as refused:
        allocations(world, text)

    assert (refused.value.start, refused.value.end) == (0, len(text))


def test_a_module_in_quotes_leaves_out_the_modules_in_it() -> None:
    recording = vramscope.load("sample_traces/transformer").recordings[0]
    every = allocations(recording)
    paths = {every.paths[i] for i in np.unique(every.module).tolist()} - {""}
    parents = [path for path in paths if any(other.startswith(f"{path}.") for other in paths)]

    for path in parents[:3]:
        alone = allocations(recording, f'module:"{path}"')
        assert len(alone) == int((every.module == every.paths.index(path)).sum())
        assert len(alone) < len(allocations(recording, f"module:{path}"))
    assert parents
