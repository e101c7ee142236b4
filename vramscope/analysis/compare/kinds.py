"""Says in what kind two recordings differ: torch, device, settings, checkpointing, what a step is given."""

from vramscope.model.marks import Phase
from vramscope.model.recording import Recording
from vramscope.units import format_bytes

_NEARLY = 0.01


def different_in_kind(
    before: Recording, after: Recording, input_bytes: tuple[int, int] = (0, 0)
) -> list[str]:
    """Return what differs before any line does, in words; facts that one recording lacks are left out.

    *input_bytes* are the bytes of a typical input in both; 0 where none is known.
    """
    one, other = before.process, after.process
    pairs = [
        ("torch", one.torch, other.torch),
        ("Python", one.python, other.python),
        ("device", before.device.name, after.device.name),
        ("ranks", str(one.world_size), str(other.world_size)),
    ]
    found = [f"{name} {a} → {b}" for name, a, b in pairs if a and b and a != b]
    for name in sorted({*one.allocator, *other.allocator}):
        values = [each.allocator.get(name, "not set") for each in (one, other)]
        if values[0] != values[1] and one.allocator and other.allocator:
            found.append(f"{name} {values[0]} → {values[1]}")
    again = [bool((each.phases.phase == Phase.RECOMPUTE).any()) for each in (before, after)]
    if again[0] != again[1] and len(before.phases) and len(after.phases):
        found.append("checkpointing " + ("off → on" if again[1] else "on → off"))
    return [*found, *_given(*input_bytes)]


def _given(before: int, after: int) -> list[str]:
    """Return the change of what a step is given, as a factor where it is a whole number."""
    if not before or not after or before == after:
        return []
    times = max(before, after) / min(before, after)
    if round(times) >= 2 and abs(times - round(times)) <= _NEARLY * times:
        return [f"inputs of a step {'×' if after > before else '÷'} {round(times)}"]
    return [f"inputs of a step {format_bytes(before)} → {format_bytes(after)}"]
