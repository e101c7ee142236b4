"""The panel that answers whether one more tensor fits at an instant, and where its bytes come from."""

from typing import Any

from dash import html

from vramscope.allocator.settings import Settings
from vramscope.analysis.would_fit import BlockSource, Placement, fit_of
from vramscope.errors import UsageError
from vramscope.model.snapshot import Snapshot
from vramscope.units import format_bytes, parse_bytes

from ...data import View
from .. import panel as panels
from .. import typed


def panel() -> html.Section:
    """Return a box for a size, and an empty element for the answer."""
    reply = html.Div(id="fr-fit", **{"aria-live": "polite"})
    box = typed.box("fr-size", type="text", placeholder="512 MiB", className="search", maxLength=20)
    question = html.Div([html.Label(["One more tensor of ", *box]), reply], className="fit")
    return panels.panel("Would it fit?", question)


_ORIGIN = {
    BlockSource.BLOCK: "Yes, from a cached block.",
    BlockSource.NEW_SEGMENT: "Yes, from a new cudaMalloc.",
    BlockSource.AFTER_RELEASE: "Only after the cache is released, which stalls the device.",
    BlockSource.NOWHERE: "No: out of memory.",
    BlockSource.UNKNOWN: "No cached block is large enough; the free bytes of the device are not recorded.",
}


def answer(view: View, state: Snapshot, text: str | None) -> Any:
    """Return the answer for the size in *text* at the instant of *state*.

    *text* is what is typed, such as ``512 MiB``.
    """
    if not (text or "").strip():
        return html.P("Type a size; the answer is for the instant shown above.", className="dim")
    try:
        n_bytes = parse_bytes(text or "")
        if n_bytes <= 0:
            raise UsageError("a size above 0")
    except (UsageError, ValueError):
        return html.P("This is not a size with its unit; try 512 MiB or 1.5 GiB.", className="dim")
    process = view.recording.process
    settings = Settings.from_snapshot(process.allocator, torch=process.torch)
    capacity = view.recording.device.total_bytes or None
    if capacity and settings.memory_fraction is not None:
        capacity = int(capacity * settings.memory_fraction)
    return _words(fit_of(state, n_bytes, settings, (0, 0), capacity))


def _words(fit: Placement) -> list[Any]:
    facts = [
        ("Block it needs", format_bytes(fit.needed_bytes)),
        ("Largest free block", format_bytes(fit.largest_free_bytes)),
        ("Requested from the driver", format_bytes(fit.from_driver_bytes)),
        ("empty_cache() releases", format_bytes(fit.releasable_bytes)),
        (
            "Reserved",
            format_bytes(fit.reserved_bytes)
            + (f" of {format_bytes(fit.capacity_bytes)}" if fit.capacity_bytes else ""),
        ),
    ]
    rows = [html.Div([html.Dt(name), html.Dd(text)]) for name, text in facts]
    return [html.P(_ORIGIN[fit.origin], className=f"verdict fit-{fit.origin.name.lower()}"),
            html.Dl(rows, className="fact-list")]  # fmt: skip
