"""In what kind two recordings differ: torch, device, settings, checkpointing, what a step is given."""

from collections import Counter
from collections.abc import Callable

import numpy as np

from vramscope.analysis.shapes import TensorShape, shapes_of
from vramscope.model.marks import Category, Phase
from vramscope.model.recording import Recording
from vramscope.units import format_bytes

_NEARLY = 0.01
_ID_BYTES = 8
"""Bytes of an int64, in which batches of token ids are."""
_TIME_MAY_COME_FIRST = ("in_proj_weight", "weight_ih_l0")
"""Parameters of torch's modules that take the sequence before the batch unless they are made otherwise."""


def different_in_kind(
    before: Recording, after: Recording, input_bytes: tuple[int, int] = (0, 0)
) -> list[str]:
    """Return what differs before any line does, in words; facts that one recording lacks are left out.

    *input_bytes* are the bytes of a typical input in both, for recordings without its shape; 0 where none
    is known.
    """
    one, other = before.process, after.process
    settings = sorted({*one.allocator, *other.allocator}) if one.allocator and other.allocator else []
    pairs = [
        ("torch", one.torch, other.torch),
        ("Python", one.python, other.python),
        ("device", before.device.name, after.device.name),
        ("ranks", str(one.world_size), str(other.world_size)),
        *((name, *(each.allocator.get(name, "not set") for each in (one, other))) for name in settings),
        ("bytes of a parameter's numbers", _parameter_bytes(before), _parameter_bytes(after)),
        ("optimizer", _optimizers(before), _optimizers(after)),
        ("checkpointing", _checkpointing(before), _checkpointing(after)),
    ]
    found = [f"{name} {a} → {b}" for name, a, b in pairs if a and b and a != b]
    return [*found, *_given(before, after, input_bytes)]


def _parameter_bytes(recording: Recording) -> str:
    """Return the bytes of a number of the parameters; '' where they differ, or are not known."""
    labels = recording.labels
    found = np.unique(labels.element_bytes[labels.category == Category.PARAMETER]).tolist()
    return str(found[0]) if len(found) == 1 and found[0] else ""


def _optimizers(recording: Recording) -> str:
    phases = recording.phases.rows(recording.phases.phase == Phase.OPTIMIZER)
    return " and ".join(sorted({phases.names[row] for row in phases.name.tolist()}))


def _checkpointing(recording: Recording) -> str:
    phase = recording.phases.phase
    return "" if not len(phase) else "on" if (phase == Phase.RECOMPUTE).any() else "off"


def _given(before: Recording, after: Recording, n_bytes: tuple[int, int]) -> list[str]:
    """Return the change of what a step is given, where it is known by the side of the inputs that changed."""
    was, now = _typical_input(before), _typical_input(after)
    if was is None or now is None:
        return [f"inputs of a step {_change(*n_bytes, format_bytes)}"] if len({*n_bytes, 0}) == 3 else []
    if was == now:
        return []
    (old, one), (new, other) = was, now
    shapes = f"inputs {' × '.join(map(str, old))} → {' × '.join(map(str, new))}"
    changed = [row for row, pair in enumerate(zip(old, new, strict=False)) if len({*pair}) == 2]
    if one != other:
        return [f"{shapes}, with numbers of {one} → {other} bytes"]
    names = ("batch", "sequence") if (len(old), one) == (2, _ID_BYTES) else ("batch",)
    is_named = len(old) == len(new) > 1 and len(changed) == 1 and changed[0] < len(names)
    labels = (*before.labels.names, *after.labels.names)
    if not is_named or any(label.endswith(_TIME_MAY_COME_FIRST) for label in labels):
        return [shapes]
    return [f"{names[changed[0]]} {_change(old[changed[0]], new[changed[0]], str)} ({shapes})"]


def _typical_input(recording: Recording) -> TensorShape | None:
    """Return the shape of the largest input of most training steps; None where it differs, or is unknown."""
    labels, phases = recording.labels, recording.phases
    given = labels.rows(labels.category == Category.INPUT)
    forwards = phases.rows((phases.phase == Phase.FORWARD) & (phases.depth == 0))
    row = np.searchsorted(forwards.start_event, given.event) - 1
    largest: dict[int, TensorShape] = {}
    for at, event, shape in zip(row.tolist(), given.event.tolist(), shapes_of(given), strict=True):
        if at >= 0 and event <= forwards.end_event[at] and shape:
            step = int(forwards.step[at])
            largest[step] = max(largest.get(step, shape), shape, key=lambda each: each.n_bytes)
    found = Counter(largest.values()).most_common(1)
    return found[0][0] if found and 2 * found[0][1] > len(largest) else None


def _change(before: int, after: int, words: Callable[[int], str]) -> str:
    """Return a change as a factor where that is a whole number, else with both values."""
    times = max(before, after) / min(before, after)
    if round(times) >= 2 and abs(times - round(times)) <= _NEARLY * times:
        return f"{'×' if after > before else '÷'} {round(times)}"
    return f"{words(before)} → {words(after)}"
