"""What each call stack held at the peak of allocated bytes, as the formats of flame graphs want it."""

from collections.abc import Iterator

from vramscope.analysis.by_stack import by_stack
from vramscope.model.recording import Recording
from vramscope.model.stacks import Frame

NO_STACK = Frame("no stack recorded", "", 0)


def live_stacks(recording: Recording) -> Iterator[tuple[tuple[Frame, ...], int]]:
    """Yield the frames, outermost first, and the allocated bytes of each stack, largest first.

    The bytes sum up to the peak of allocated bytes. Blocks without a stack stand under ``NO_STACK``.
    """
    held = by_stack(recording)
    for stack_id, n_bytes in zip(held.stack_id.tolist(), held.bytes.tolist(), strict=True):
        yield recording.stacks.frames(stack_id)[::-1] or (NO_STACK,), n_bytes


def title(recording: Recording) -> str:
    """Name the rank and the device in one text."""
    return f"rank {recording.process.rank}, device {recording.device.index}"
