"""Rows that no Python frame names say what they can: the backward of which operation, or from before."""

import pytest

from vramscope.analysis.categories import assign
from vramscope.analysis.lifetimes import lifetimes
from vramscope.analysis.lines import line_words, lines, live_bytes
from vramscope.model.marks import Phase, Phases
from vramscope.model.snapshot import Blocks, BlockState, Segments, Snapshot
from vramscope.model.stacks import stacks_of
from vramscope.model.trace import Action


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            "torch::autograd::generated::BmmBackward0::apply(std::vector<at::Tensor>&&)",
            "backward of bmm  +2 frames",
        ),
        ("torch::autograd::generated::LogSoftmaxBackward0::apply()", "backward of log_softmax  +2 frames"),
        ("torch::autograd::Engine::thread_main()", "no Python line  +2 frames"),
    ],
)
def test_a_node_of_autograd_names_its_operation(recording, function, words):
    stacks = stacks_of([("at::empty_cuda", "Empty.cpp", 0), (function, "??", 0)])
    made = recording((Action.ALLOC, 0, 512, len(stacks) - 1), stacks=stacks)

    found = lifetimes(made)
    (line,) = lines(live_bytes(made, found, assign(made, found), 1))

    assert line_words(line) == words


def test_what_was_there_before_says_its_sizes(recording):
    sizes = [4 << 20, 1 << 20, 4 << 20, 1024, 2048, 1 << 20]
    address = [sum(sizes[:at]) for at in range(len(sizes))]
    initial = Snapshot(
        segments=Segments.of(address=[0], size=[sum(sizes)]),
        blocks=Blocks.of(segment=[0] * 6, address=address, size=sizes, state=[BlockState.ALLOCATED] * 6),
    )
    made = recording((Action.ALLOC, 1 << 30, 512), initial=initial)

    found = lifetimes(made)
    words = [line_words(line) for line in lines(live_bytes(made, found, assign(made, found), 1))]

    assert words == [
        "from before the recording: 2 of 4.00 MiB, 2 of 1.00 MiB, 1 of 2.00 KiB and 1 other",
        "no stack recorded",
    ]


def test_a_block_without_a_stack_says_its_phase(recording):
    phases = Phases.of(
        phase=[Phase.BACKWARD], step=[-1], start_event=[1], end_event=[2], start_ns=[0], end_ns=[0], name=[0]
    )
    made = recording((Action.ALLOC, 4096, 512), (Action.ALLOC, 8192, 1024), phases=phases)

    found = lifetimes(made)
    words = [line_words(line) for line in lines(live_bytes(made, found, assign(made, found), 2))]

    assert words == ["no stack recorded, in backward", "no stack recorded"]
