"""Rows that no Python frame names say what they can: the backward of which operation, or from before."""

import pytest

from vramscope.analysis.categories import assign
from vramscope.analysis.lifetimes import lifetimes
from vramscope.analysis.lines import line_words, lines, live_bytes
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


def test_what_was_there_before_says_so(recording):
    initial = Snapshot(
        segments=Segments.of(address=[0], size=[1024]),
        blocks=Blocks.of(segment=[0], address=[0], size=[1024], state=[BlockState.ALLOCATED]),
    )
    made = recording((Action.ALLOC, 4096, 512), initial=initial)

    found = lifetimes(made)
    words = [line_words(line) for line in lines(live_bytes(made, found, assign(made, found), 1))]

    assert words == ["no stack recorded: from before the recording", "no stack recorded"]
