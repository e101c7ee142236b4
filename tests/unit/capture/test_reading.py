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


def test_stacks_of_blocks_that_stayed_are_not_read_again():
    """Two stayed; at 0 one came without a stack, at 1024 of another size, at 1536 a new one."""
    stacks = StackLog()
    known = stacks.builder.add([("earlier", "train.py", 1)])
    frames = [{"filename": "train.py", "line": 2, "name": "later"}]

    def block(address, size, frames):
        return {
            "address": address, "size": 512, "requested_size": size, "state": "active_allocated",
            "frames": frames,
        }  # fmt: skip

    blocks = [
        block(0, 1, []),
        block(512, 100, [*frames]),
        block(1024, 7, [*frames]),
        block(2048, 9, [*frames]),
    ]
    blocks += [block(1536, 3, [*frames])]
    segment = {"device": 0, "address": 0, "total_size": 2560, "stream": 0, "segment_type": "small"}
    taken = SimpleNamespace(snapshot={"segments": [segment | {"blocks": blocks}], "device_traces": []})
    reading = Reading(taken, {}, stacks, ("2.13.0", 0))
    before = {0: 1, 512: 100, 1024: 8, 2048: 9}
    reading.knows({0: {address: (512, size, 0, 0, known) for address, size in before.items()}})
    held = reading.state(0).final.blocks
    named = {
        address: [frame.function for frame in stacks.builder.build().frames(stack)]
        for address, stack in zip(held.address.tolist(), held.stack_id.tolist(), strict=True)
    }

    assert named == {0: [], 512: ["earlier"], 1024: ["later"], 1536: ["later"], 2048: ["earlier"]}
