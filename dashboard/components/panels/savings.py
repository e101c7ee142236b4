"""The lower half of the page "Fit": strategies that lower the peak, and other batch sizes."""

from typing import Any

from dash import html

from vramscope.analysis.batch_fit import BatchFit
from vramscope.analysis.strategies import NOT_ESTIMATED, Strategies, Strategy
from vramscope.model.marks import Phase
from vramscope.units import format_bytes, format_name

from ..panel import panel, table
from ..prose import sentence

_MOST_STRATEGIES = 12
_FITS = {True: "fits", False: "does not fit", None: "cannot tell"}


def _interval(low: int, high: int) -> str:
    return f"{format_bytes(low)} to {format_bytes(high)}"


def savings(found: Strategies) -> html.Section:
    """Return the table of strategies that lower the peak, in the order to try them."""
    phase = format_name(found.phase)
    place = f", in {phase}" if found.phase != Phase.OTHER else ""
    title = "What else would lower the peak"
    beside = html.Span(f"{format_bytes(found.peak_bytes)} allocated{place}", className="dim")
    texts = filter(None, (found.open_words, NOT_ESTIMATED))
    open_ones = [html.P(sentence(text), className="dim fit-note") for text in texts]
    if not found.advised:
        known = found.unknown_bytes < found.peak_bytes
        text = (
            "No strategy that was tried lowers the recorded peak."
            if known
            else "No categories are known, so nothing can be tried."
        )
        return panel(title, html.P(text, className="dim nothing"), *open_ones, beside=beside)
    columns = ("In the order to try them", "Saves", "Leaves", "", "What it costs; how sure the bytes are")
    rows = [_strategy(each, found.peak_bytes) for each in found.advised[:_MOST_STRATEGIES]]
    shown = table(columns, "lrrll", rows, "fit-table fit-savings")
    useless = f"Does not lower the peak, so not advised: {'; '.join(found.without_effect)}."
    below = html.P(useless, className="dim fit-note") if found.without_effect else html.Span()
    path = html.P(sentence(found.path), className="dim fit-note") if found.path else html.Span()
    return panel(title, shown, path, *open_ones, below, beside=beside)


def _strategy(each: Strategy, peak: int) -> html.Tr:
    parts = ", ".join(
        f"{format_bytes(n)} {name.replace('_', ' ')}" for name, n in each.by_category.items() if n > 0
    )
    width = f"{100 * each.peak_bytes / max(peak, 1):.1f}%"
    bar = html.Div(html.I(style={"width": width, "left": "0"}, className="less"), className="diff-bar plain")
    name = html.Div([html.Span(each.name, className="strong"), html.Div(each.how, className="fit-how")])
    saved = html.Span(format_bytes(each.saved_bytes), title=f"{each.saved_bytes:,} bytes: {parts}")
    doubt = html.Div([html.Div(each.cost), html.Div(each.basis, className="dim")], className="fit-why")
    return html.Tr(
        [
            html.Td(name),
            html.Td(saved, className="number strong"),
            html.Td(
                [format_bytes(each.peak_bytes), html.Small(f"{_interval(each.low_bytes, each.high_bytes)}")],
                className="number",
                title=f"in {each.phase.name.lower()}",
            ),
            html.Td(bar, className="fit-bar"),
            html.Td(doubt),
        ]
    )


def another_batch(fit: BatchFit, room: int) -> Any:
    """Return the table of what other batch sizes need.

    *room* are the bytes that the allocator can reserve on the chosen card.
    """
    if fit.model is None:
        return html.Span()
    columns = ("Batch", "Peak allocated", "At least, at most", "Reserved", "In", "On the card above")
    rows = [
        html.Tr([
            html.Td(fit.named(size)),
            html.Td(format_bytes(each.likely_bytes), className="number"),
            html.Td(_interval(each.low_bytes, each.high_bytes), className="number dim"),
            html.Td(
                "" if each.reserved_bytes is None else format_bytes(each.reserved_bytes), className="number"
            ),
            html.Td(each.phase.name.lower(), className="number dim"),
            html.Td(_FITS[each.fits(room)], className="number"),
        ])
        for size, each in fit.rows()
    ]  # fmt: skip
    largest = fit.fitting(room)
    text = "Not even the smallest surely fits."
    if largest is not None and largest.size:
        at_least = "at least " if largest.is_limited_by_data else ""
        text = f"The largest batch that surely fits the card above: {at_least}{fit.named(largest.size)}."
    shown = table(columns, "lrrrrr", rows, "fit-table")
    return panel("Another batch", shown, beside=html.Span(text, className="dim"))
