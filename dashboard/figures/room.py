"""The parts of the device at a failed allocation, each with the name of its color."""

from typing import Any, NamedTuple


class RoomPart(NamedTuple):
    """One kind of bytes of a device."""

    name: str
    """The column of the analysis, without ``_bytes``."""
    label: str
    style: str
    """Its name in the palette of parts."""


PARTS = (
    RoomPart("allocated", "allocated", "requested"),
    RoomPart("free_here", "free, for such requests", "inactive_split"),
    RoomPart("free_other_streams", "free or pending, other streams", "pending"),
    RoomPart("free_other_sizes", "free, other size class", "releasable"),
    RoomPart("free_private", "free, private pools", "rounding"),
    RoomPart("own_outside", "this process outside of torch", "outside"),
    RoomPart("others", "other processes", "others"),
    RoomPart("device_free", "free on the device", "none"),
)


def known_parts(room: Any) -> list[tuple[RoomPart, int]]:
    """Return the parts that have bytes at a failure, with their bytes."""
    known = [(part, int(getattr(room, f"{part.name}_bytes"))) for part in PARTS]
    return [(part, n_bytes) for part, n_bytes in known if n_bytes > 0]
