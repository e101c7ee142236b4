"""Backward's events get the forward's lines where torch reports them."""

from types import SimpleNamespace

from vramscope.capture.cuda.reading import Reading
from vramscope.capture.log import StackLog

FORWARD = [
    '  File "train.py", line 9, in main\n    model(x)\n',
    '  File "model.py", line 3, in forward\n    f(x)\n',
]


def entry(**more):
    return {"action": "alloc", "addr": 512, "size": 100, "stream": 0, "time_us": 5} | more


def test_a_forward_stack_stands_under_backward_where_there_is_no_other():
    frames = [{"filename": "hook.py", "line": 1, "name": "hook"}]
    ring = [
        entry(forward_frames=FORWARD),
        entry(addr=1024, forward_frames=FORWARD, frames=frames),
        entry(addr=2048),
    ]
    taken = SimpleNamespace(snapshot={"segments": [], "device_traces": [ring], "allocator_settings": {}})
    stacks = StackLog()

    trace = Reading(taken, {0: (0, None)}, stacks, ("2.13.0", 0)).events(0).trace
    first, second, third = (stacks.builder.build().frames(int(i)) for i in trace.stack_id)

    assert first == (("backward", "", 0), ("forward", "model.py", 3), ("main", "train.py", 9))
    assert second == (("hook", "hook.py", 1),)
    assert third == ()
    assert "frames" not in ring[0]
