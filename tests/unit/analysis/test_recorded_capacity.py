"""What the allocator could reserve when it ran short: what it had, and what was free on the device."""

import pytest

from vramscope.analysis.settings_advice import recorded_capacity
from vramscope.model.codes import NoteCode
from vramscope.model.device import Device
from vramscope.model.marks import MarkKind, Marks, Note
from vramscope.model.recording import Recording
from vramscope.model.trace import Action, Trace

MIB = 1 << 20


@pytest.mark.parametrize(
    ("free_bytes", "limit_bytes", "room_bytes"),
    [(6 * MIB, 0, 26 * MIB), (0, 0, 20 * MIB), (6 * MIB, 25 * MIB, 25 * MIB)],
)
def test_what_was_free_when_a_request_failed_is_room_for_smaller_ones(
    free_bytes: int, limit_bytes: int, room_bytes: int
) -> None:
    trace = Trace.of(
        action=[Action.SEGMENT_ALLOC, Action.ALLOC, Action.OOM], address=[64, 64, 0],
        size=[20 * MIB, 20 * MIB, 8 * MIB], block_size=[20 * MIB, 20 * MIB, 0],
    )  # fmt: skip
    failed = Marks.of(kind=[MarkKind.OOM], event=[2], value=[free_bytes])
    notes = (Note(NoteCode.LIMIT, "limited", limit_bytes),) if limit_bytes else ()
    recording = Recording(trace=trace, marks=failed, device=Device(total_bytes=100 * MIB), notes=notes)

    assert recorded_capacity(recording) == room_bytes
