"""Would one more tensor fit at an instant, and where would it come from?"""

from typing import Any

from dash import html

from vramscope.allocator.settings import Settings
from vramscope.analysis.would_fit import BlockSource, Placement, fit_of
from vramscope.errors import UsageError
from vramscope.model.snapshot import Snapshot
from vramscope.units import format_bytes, parse_bytes

from ...data import View
from .. import typed


def panel() -> html.Section:
    """A box for a size, and room for the answer."""
    told = html.Div(id="fr-fit", **{"aria-live": "polite"})
    box = typed.box("fr-size", type="text", placeholder="512 MiB", className="search", maxLength=20)
    return html.Section(
        [
            html.Div(html.H3("Would it fit?"), className="panel-bar"),
            html.Div([html.Label(["One more tensor of ", *box]), told], className="fit"),
        ],
        className="panel", **{"aria-label": "Would it fit?"},
    )  # fmt: skip


_ORIGIN = {
    BlockSource.BLOCK: "Yes, from a cached block.",
    BlockSource.NEW_SEGMENT: "Yes, from the driver.",
    BlockSource.AFTER_RELEASE: "Only after the cache is released, which stalls the device.",
    BlockSource.NOWHERE: "No: out of memory.",
    BlockSource.UNKNOWN: "No cached block is large enough; what the driver has left was not recorded.",
}


def answer(view: View, state: Snapshot, text: str | None) -> Any:
    """What is said about the size in *text*, at the instant of *state*."""
    if not (text or "").strip():
        return html.P("Type a size; the answer is for the instant shown above.", className="dim")
    try:
        n_bytes = parse_bytes(text or "")
        if n_bytes <= 0:
            raise UsageError("a size above 0")
    except (UsageError, ValueError):
        return html.P("That is no size; try 512 MiB or 1.5 GiB.", className="dim")
    process = view.recording.process
    settings = Settings.from_snapshot(process.allocator, torch=process.torch)
    capacity = view.recording.device.total_bytes or None
    if capacity and settings.memory_fraction is not None:
        capacity = int(capacity * settings.memory_fraction)
    return _words(fit_of(state, n_bytes, settings, (0, 0), capacity))


def _words(fit: Placement) -> list[Any]:
    facts = [
        ("Block it needs", format_bytes(fit.needed)),
        ("Largest free block", format_bytes(fit.largest_free)),
        ("Asked of the driver", format_bytes(fit.from_driver)),
        ("empty_cache() gives back", format_bytes(fit.releasable)),
        (
            "Reserved",
            format_bytes(fit.reserved) + (f" of {format_bytes(fit.capacity)}" if fit.capacity else ""),
        ),
    ]
    rows = [html.Div([html.Dt(name), html.Dd(text)]) for name, text in facts]
    return [html.P(_ORIGIN[fit.origin], className=f"verdict fit-{fit.origin.name.lower()}"),
            html.Dl(rows, className="fact-list")]  # fmt: skip
