"""What do the reserved bytes serve at an instant? One bar whose parts sum to reserved."""

from typing import Any

from dash import html

from vramscope.units import format_bytes

from ..data import Data, View
from .definitions import DEFINITION, explained

PARTS = ("requested", "rounding", "pending", "inactive_split", "releasable")
WORDS = {"inactive_split": "inactive split"}


def layout(data: Data, view: View, at: int) -> Any:
    """The identity of the instant."""
    said = data.ask(view, "identity", instant=at)
    sizes = {part: int(getattr(said, part)) for part in PARTS}
    whole = max(sum(sizes.values()), 1)
    bar = [
        html.Span(
            className=f"part part-{part}", style={"flexGrow": str(size)}, title=f"{WORDS.get(part, part)}"
        )
        for part, size in sizes.items()
        if size
    ]
    entries = [_entry(part, size, whole) for part, size in sizes.items()]
    title = html.H3(
        ["Reserved at this instant ", html.Span(format_bytes(sum(sizes.values())), className="dim")]
    )
    return html.Section(
        [html.Div(title, className="panel-bar"), html.Div(bar, className="parts", role="presentation"),
         html.Dl(entries, className="part-list")],
        className="panel", **{"aria-label": "What the reserved memory serves"},
    )  # fmt: skip


def _entry(part: str, size: int, whole: int) -> html.Div:
    name = html.Span(
        [html.I(className=f"swatch part-{part}"), WORDS.get(part, part)], className="term", tabIndex="0"
    )
    share = html.Span(f"{100 * size / whole:.1f} %", className="dim")
    return html.Div(
        [
            html.Dt(explained(name, DEFINITION[part])),
            html.Dd([html.Span(format_bytes(size)), share], title=f"{size:,} bytes"),
        ]
    )
