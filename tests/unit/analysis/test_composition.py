"""The bytes of an instant are divided by any property, and nothing is lost in doing so."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramscope.analysis.composition import BEFORE, BY, composition
from vramscope.errors import UsageError
from vramscope.model.marks import Phase, Phases, Steps
from vramscope.model.recording import Recording
from vramscope.model.snapshot import Blocks, Segments, Snapshot
from vramscope.model.stacks import stacks_of
from vramscope.model.trace import Action, Trace

OPS = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 4096)), max_size=40)
KIB = 1 << 10


@pytest.fixture
def training():
    """1 KiB was there before; then 2 KiB forward, 4 KiB backward on another stream, which go again."""
    rows = [
        (Action.ALLOC, 8192, 2 * KIB, 0, 0, 1),
        (Action.ALLOC, 16384, 4 * KIB - 100, 77, 1, 2),
        (Action.FREE_REQUESTED, 16384, 4 * KIB - 100, 77, 1, 0),
        (Action.FREE_COMPLETED, 16384, 4 * KIB - 100, 77, 1, 0),
        (Action.FREE_REQUESTED, 8192, 2 * KIB, 0, 0, 0),
        (Action.FREE_COMPLETED, 8192, 2 * KIB, 0, 0, 0),
    ]
    names = ("action", "address", "size", "stream", "pool", "stack_id")
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    return Recording(
        trace=Trace.of(**columns, block_size=[-(-row[2] // 512) * 512 for row in rows]),
        initial=Snapshot(
            segments=Segments.of(address=[0], size=[20480]),
            blocks=Blocks.of(segment=[0], address=[0], size=[KIB], requested_size=[1000]),
        ),
        stacks=stacks_of([("forward", "model.py", 3)], [("backward", "model.py", 9)]),
        pools=((0, 0), (0, 1)),
        steps=Steps.of(index=[4], start_event=[0], end_event=[6]),
        phases=Phases.of(phase=[Phase.FORWARD, Phase.BACKWARD], start_event=[0, 1], end_event=[1, 4]),
    )


@pytest.mark.parametrize(
    ("by", "totals"),
    [
        ("phase", {"backward": 4 * KIB, "forward": 2 * KIB, BEFORE: KIB}),
        ("step", {"step 4": 6 * KIB, BEFORE: KIB}),
        ("stream", {"stream 1": 4 * KIB, "stream 0": 3 * KIB}),
        ("pool", {"private pool (0, 1)": 4 * KIB, "default": 3 * KIB}),
        ("size_class", {"up to 4.00 KiB": 4 * KIB, "up to 2.00 KiB": 2 * KIB, "up to 1.00 KiB": KIB}),
        (
            "stack",
            {
                "model.py:9 backward (stack 2)": 4 * KIB,
                "model.py:3 forward (stack 1)": 2 * KIB,
                "none": KIB,
            },
        ),
        ("line", {"model.py:9 backward": 4 * KIB, "model.py:3 forward": 2 * KIB, "no stack recorded": KIB}),
        ("module", {"none": 7 * KIB}),
    ],
)
def test_the_bytes_at_the_peak_by_each_property(training, by, totals):
    found = training.composition(by=by)

    assert found.totals == totals
    assert list(found.totals) == list(totals)
    assert found.instant == 2
    assert found.requested_bytes.sum() == 7 * KIB - 124


def test_a_line_is_one_whoever_calls_it_and_two_where_it_calls_two_functions(training):
    helper, library = ("helper", "model.py", 3), "/x/site-packages/torch/nn/functional.py"
    training = replace(
        training,
        stacks=stacks_of(
            [helper, ("train", "t.py", 1)],
            [helper, ("evaluate", "t.py", 7)],
            [("softmax", library, 5), helper],
        ),
    )
    trace = training.trace
    trace = replace(
        trace, stack_id=np.where(trace.action == Action.ALLOC, [2, 4, 0, 0, 0, 0], 0).astype("i4")
    )
    together = replace(training, trace=trace).composition(by="line").totals
    trace = replace(
        trace, stack_id=np.where(trace.action == Action.ALLOC, [2, 6, 0, 0, 0, 0], 0).astype("i4")
    )
    apart = replace(training, trace=trace).composition(by="line").totals

    assert together == {"model.py:3 helper": 6 * KIB, "no stack recorded": KIB}
    assert apart == {
        "model.py:3 helper: softmax": 4 * KIB,
        "model.py:3 helper": 2 * KIB,
        "no stack recorded": KIB,
    }


@pytest.mark.parametrize("asked", [{"by": "colour"}, {"instant": 7}])
def test_what_cannot_be_answered_is_refused(training, asked):
    with pytest.raises(UsageError):
        training.composition(**asked)


@given(OPS, st.integers(0, 20), st.data())
def test_whatever_tells_them_apart_the_bytes_sum_up_to_what_was_allocated(play, ops, n_before, data):
    recording = play(ops, n_before).recording
    at = data.draw(st.integers(0, len(recording.trace)))
    allocated = int(recording.timeline().allocated_bytes[at])
    for by in BY:
        found = composition(recording, by=by, instant=at)
        assert found.bytes.sum() == allocated, by
        assert (np.diff(found.bytes) <= 0).all(), by
