"""The figures in torch's own message of an OutOfMemoryError."""

from collections.abc import Mapping
from dataclasses import dataclass

from vramscope.formats.log.oom_messages import figures_in

_ROUNDING = 0.01
"""Relative error of a size in the message: two decimals, of at least 1.00."""


@dataclass(frozen=True, slots=True)
class OomMessage:
    """torch's message about a failed request; sizes are rounded as in the message."""

    text: str
    requested_bytes: int
    known: Mapping[str, int]
    """The other bytes by name, as in ``figures_in``."""


def message_of(text: str, requested_bytes: int) -> OomMessage | None:
    """Return the message in *text*; None if there is none, or if it is about another request.

    *requested_bytes* are as recorded: rounded up by the allocator.
    """
    found = figures_in(text)
    if found is None:
        return None
    requested, known = found
    # torch rounds requests up to 512 bytes; the message has the bytes before that, to two decimals.
    is_same = abs(requested - requested_bytes) <= max(_ROUNDING * requested_bytes, 1024)
    return OomMessage(text, requested, known) if is_same else None
