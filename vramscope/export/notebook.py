"""What a notebook shows of a recording: an overview as HTML without scripts."""

from html import escape

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.verdicts import is_exact
from vramscope.analysis.verdicts.missing import missing_parts
from vramscope.model.recording import Recording
from vramscope.units import format_bytes

_COLUMNS, _HEIGHT = 240, 48
_SOURCE = {"simulated": "simulated device", "cuda": "CUDA", "snapshot": "snapshot", "counters": "counters"}


def html(recording: Recording) -> str:
    """Return the origin, peaks, memory over time and notes of a recording as HTML."""
    process, device = recording.process, recording.device
    title = device.name or f"device {device.index}"
    source = _SOURCE.get(recording.source, recording.source)
    words = [
        f"rank {process.rank}",
        source,
        f"{len(recording.trace):,} events",
        f"{len(recording.steps):,} steps",
    ]
    notes = "".join(
        f"<div style='opacity:.75'>Note: {escape(note.text)}</div>" for note in recording.notes[:3]
    )
    return (
        "<div style='font-family:system-ui,sans-serif;line-height:1.45;max-width:44rem'>"
        f"<div><b>{escape(title)}</b> <span style='opacity:.7'>{escape(' · '.join(words))}</span></div>"
        f"{_course(recording)}{notes}</div>"
    )


def _course(recording: Recording) -> str:
    if not len(recording.trace) and not len(recording.initial.blocks):
        return "<div style='opacity:.75'>No allocator events were recorded.</div>"
    known = recording.timeline()
    at = int(known.allocated_bytes.argmax())
    peak, reserved = int(known.allocated_bytes[at]), int(known.reserved_bytes.max())
    exact = is_exact(missing_parts(recording))
    bound, most = ("", " at most") if exact else ("at least ", "")
    text = (
        f"Peak {bound}{format_bytes(peak)} allocated (event {at:,}), "
        f"{bound}{format_bytes(reserved)} reserved{most}"
    )
    top = max(reserved, peak, 1)
    areas = _area(known.reserved_bytes, top, "#56B4E9", 0.4) + _area(
        known.allocated_bytes, top, "#7A8896", 0.9
    )
    box = f"viewBox='0 0 {_COLUMNS} {_HEIGHT}' preserveAspectRatio='none'"
    style = f"style='width:100%;height:{_HEIGHT}px'"
    picture = f"<svg role='img' aria-label='{escape(text)}' {box} {style}>{areas}</svg>"
    return f"<div>{escape(text)}</div>{picture}"


def _area(values: NDArray[np.int64], top: int, color: str, opacity: float) -> str:
    """Return the area of the maximum in each pixel column, so that the peak is visible."""
    n_columns = min(_COLUMNS, len(values))
    edges = np.linspace(0, len(values), n_columns + 1).astype("i8")[:-1]
    best = np.maximum.reduceat(values, edges)
    x = np.linspace(0, _COLUMNS, n_columns + 1)
    heights = _HEIGHT - best / top * (_HEIGHT - 2)
    steps = zip(x[:-1].tolist(), x[1:].tolist(), heights.tolist(), strict=True)
    points = " ".join(f"{left:.1f},{y:.1f} {right:.1f},{y:.1f}" for left, right, y in steps)
    shape = f"0,{_HEIGHT} {points} {_COLUMNS},{_HEIGHT}"
    return f"<polygon fill='{color}' fill-opacity='{opacity}' points='{shape}'/>"
