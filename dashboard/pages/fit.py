"""Which card would do, which setting of the allocator helps, and what else lowers the peak?"""

from dataclasses import dataclass
from typing import Any

from dash import dcc, html

from vramscope.analysis.batch_fit import BatchFit
from vramscope.analysis.settings_advice import SettingsAdvice, Trial, outside_bytes
from vramscope.analysis.strategies import Strategies, Strategy
from vramscope.analysis.what_if import Outcome
from vramscope.model.marks import Phase
from vramscope.model.recording import Recording
from vramscope.units import format_bytes

from ..address import Address
from ..components import states
from ..components.graph import graph
from ..data import Data, View, answer
from ..figures import curves
from . import Context, Page

GIB = 1 << 30
# What torch reports for one such card: the driver and error correction keep the rest.
_CARDS = (
    (16, 15.7), (24, 23.6), (40, 39.4), (48, 47.4), (80, 79.1), (96, 95.0), (141, 139.8), (192, 191.5),
)  # fmt: skip
_UNKNOWN_OUTSIDE = 600 << 20
"""CUDA's context and libraries, where nobody measured them."""
_MOST_STRATEGIES = 12


@dataclass(frozen=True, slots=True)
class Fit:
    """Everything that takes long, asked once."""

    advice: SettingsAdvice
    base: Outcome
    """As it is, without limit."""
    outside: int
    outside_is_known: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one card, as the program is and with the setting that is looked at."""

    name: str
    room: int
    """Bytes for the allocator."""
    word: str
    """``fits``, ``tight`` or ``too small``."""
    with_setting: str = ""
    """The same with the setting; '' where none is looked at."""


def _layout(context: Context) -> Any:
    data, address = context.data, context.address
    view = data.view(address)
    if not len(view.recording.trace):
        return states.nothing_recorded(view.is_live)
    fit: Fit = data.derive(view, "fit", _ask)
    chosen = _chosen(fit, address)
    verdicts = [_verdict(data, view, fit, chosen, card) for card in _all_cards(view.recording)]
    here = _here(verdicts, address)
    strategies: Strategies = data.ask(view, "strategies")
    return [
        _opening(fit, here),
        _cards(verdicts, here, address),
        html.Div(
            [_settings(fit, chosen, address), _curves(data, view, fit, chosen, here)], className="fit-pair"
        ),
        _strategies(strategies),
        _batch(data.ask(view, "batch_fit"), here),
        _basis(fit),
    ]


def _ask(recording: Recording) -> Fit:
    """The search: ten replays of 2 to 3 s per million events each."""
    advice = answer(recording, "settings_advice")
    base = advice.base if advice.base.capacity_bytes is None else answer(recording, "what_if")
    known = outside_bytes(recording)
    return Fit(advice, base, _UNKNOWN_OUTSIDE if known is None else known, known is not None)


# ---------------------------------------------------------------------------------------- the card


def _all_cards(recording: Recording) -> list[tuple[str, int]]:
    cards = [(f"{name} GB", round(size * GIB)) for name, size in _CARDS]
    own = recording.device.total_bytes
    return [("this device", own), *cards] if own else cards


def _verdict(data: Data, view: View, fit: Fit, chosen: Trial | None, card: tuple[str, int]) -> Verdict:
    name, size = card
    room = max(size - fit.outside, 1)
    word = _word(data, view, fit.base, room, None)
    return Verdict(name, room, word, _word(data, view, chosen.outcome, room, chosen) if chosen else "")


def _word(data: Data, view: View, free: Outcome, room: int, trial: Trial | None) -> str:
    """Replayed only where the bytes alone do not say it."""
    if free.capacity_bytes is None and free.peak_reserved <= room:
        return "fits"
    if free.peak_allocated > room:
        return "too small"
    conf = trial.candidate.conf if trial else None
    after = trial.candidate.empty_cache_after if trial else ""
    found = data.ask(view, "what_if", conf=conf, capacity_bytes=room, empty_cache_after=after)
    return "too small" if not found.fits else "tight" if found.n_retries else "fits"


def _here(verdicts: list[Verdict], address: Address) -> Verdict:
    """The one that the address names; else this device, else the smallest that does."""
    named = [each for each in verdicts if _key(each) == address.by]
    own = [each for each in verdicts if each.name == "this device"]
    enough = [each for each in verdicts if each.word == "fits"]
    return (named or own or enough or verdicts[-1:])[0]


def _key(verdict: Verdict) -> str:
    return verdict.name.lower().replace(" ", "-")


def _opening(fit: Fit, here: Verdict) -> html.Section:
    name = "this device" if here.name == "this device" else f"a card of {here.name}"
    reserved, allocated = fit.base.peak_reserved, fit.base.peak_allocated
    spare = here.room - reserved
    claim = {
        "fits": f"It fits {name}" + (f", with {format_bytes(spare)} to spare" if spare > 0 else ""),
        "tight": f"It just fits {name}: the cache has to be given back to make room",
        "too small": f"It does not fit {name}",
    }[here.word]
    if here.word == "too small" and here.with_setting in ("fits", "tight"):
        claim += "; with the setting below it would"
    lacking = allocated - here.room
    why = f"; {format_bytes(lacking)} too much, whatever the settings" if lacking > 0 else ""
    text = f"{format_bytes(reserved)} are reserved at most, {format_bytes(allocated)} allocated{why}."
    return html.Section(
        [html.H2(claim, className="claim"), html.P(text, className="support")], className="opening"
    )


_MARK = {"fits": "●", "tight": "◐", "too small": "○"}


def _cards(verdicts: list[Verdict], here: Verdict, address: Address) -> html.Section:
    links = [
        dcc.Link(
            [
                html.Span(each.name, className="fit-size"),
                html.Span(
                    [html.I(_MARK[each.word], **{"aria-hidden": "true"}), each.word], className="fit-word"
                ),
                html.Span(_second(each), className="fit-more"),
            ],
            href=address.go(by=_key(each)).url,
            className=f"fit-card fit-{each.word.replace(' ', '-')}" + (" here" if each is here else ""),
        )
        for each in verdicts
    ]
    bar = html.Div([html.H3("On a card of"), html.Span("choose one", className="dim only-live")],
                   className="panel-bar")  # fmt: skip
    return html.Section(
        [bar, html.Nav(links, className="fit-cards", **{"aria-label": "Capacity"})],
        className="panel", **{"aria-label": "Capacity"},
    )  # fmt: skip


def _second(verdict: Verdict) -> str:
    if verdict.with_setting in ("", verdict.word):
        return ""
    return f"{verdict.with_setting} with the setting"


# ------------------------------------------------------------------------------------ the settings


def _chosen(fit: Fit, address: Address) -> Trial | None:
    """What the address names, else what is advised."""
    named = [trial for trial in fit.advice.trials if trial.candidate.name == address.q]
    return named[0] if named else fit.advice.advised


def _settings(fit: Fit, chosen: Trial | None, address: Address) -> html.Section:
    advice = fit.advice
    said = [html.P(_sentence(advice.reason), className="fit-reason")]
    if advice.environment:
        copy = dcc.Clipboard(content=advice.environment, title="Copy", className="fit-copy only-live")
        said.append(html.P([html.Span("Set before it starts ", className="dim"),
                            states.command(advice.environment), copy], className="fit-set"))  # fmt: skip
    if not advice.is_reproduced:
        said.append(html.P("An estimate: under the recorded settings the replay does not come to what was "
                           f"recorded, {format_bytes(advice.recorded_peak)}.", className="dim"))  # fmt: skip
    bar = html.Div([html.H3("Settings of the allocator"), html.Span("by replay", className="dim")],
                   className="panel-bar")  # fmt: skip
    body = [html.Div(said, className="fit-said")]
    if advice.trials:
        body.append(_trials(advice, chosen, address))
    return html.Section([bar, *body], className="panel", **{"aria-label": "Settings of the allocator"})


def _sentence(text: str) -> str:
    """With a capital, unless it begins with the name of a setting."""
    first = text.split(" ", 1)[0]
    return f"{text if ':' in first[:-1] or '.' in first else text[:1].upper() + text[1:]}."


def _trials(advice: SettingsAdvice, chosen: Trial | None, address: Address) -> html.Table:
    words = ("Peak reserved", "Change", "Asked the driver", "Cache released")
    head = html.Tr([html.Th("Setting"), *(html.Th(word, className="number") for word in words)])
    base = advice.base
    rows = [html.Tr([html.Td("as it is"), *_numbers(base, base)])]
    for trial in advice.trials:
        name = trial.candidate.name
        here = chosen is not None and trial is chosen
        link = dcc.Link(name, href=address.go(q=name).url, className="link")
        badge = html.Span("advised", className="badge badge-cuda") if trial is advice.advised else html.Span()
        rows.append(
            html.Tr(
                [html.Td([link, " ", badge]), *_numbers(trial.outcome, base)],
                className="fit-here" if here else "",
            )
        )
    return html.Table([html.Thead(head), html.Tbody(rows)], className="diff fit-table")


def _numbers(outcome: Outcome, base: Outcome) -> list[html.Td]:
    if not outcome.fits:
        return [html.Td("out of memory", className="number verdict-bad", colSpan=4)]
    change = outcome.peak_reserved - base.peak_reserved
    sign = "+" if change > 0 else "−" if change else ""
    tone = "number strong fit-less" if change < 0 else "number"
    return [
        html.Td(format_bytes(outcome.peak_reserved), className="number",
                title=f"{outcome.peak_reserved:,} bytes"),
        html.Td(f"{sign}{format_bytes(abs(change))}" if change else "", className=tone,
                title=f"{change:+,} bytes"),
        html.Td(f"{outcome.n_segments:,} ×", className="number dim"),
        html.Td(f"{outcome.n_retries:,} ×" if outcome.n_retries else "never", className="number dim"),
    ]  # fmt: skip


def _curves(data: Data, view: View, fit: Fit, chosen: Trial | None, here: Verdict) -> html.Section:
    base = fit.advice.base
    levels = data.ask(view, "timeline").allocated
    before = curves.Curve("reserved, as it is", base.events, base.reserved)
    allocated = curves.Curve("allocated", base.events, curves.outline(base.events, levels))
    after = None
    if chosen is not None:
        after = curves.Curve(chosen.candidate.name, chosen.outcome.events, chosen.outcome.reserved)
    drawn = curves.figure(before, after, allocated, here.room)
    words = [("before", "as it is (dotted)"), ("allocated", "allocated")]
    words += [("after", chosen.candidate.name)] if chosen else []
    words += [("capacity", "room on the card")] if drawn["layout"]["shapes"] else []
    key = [html.Span([html.I(className="swatch", style={"background": curves.COLOUR[kind]}), word])
           for kind, word in words]  # fmt: skip
    bar = html.Div([html.H3("Reserved"), html.Div(key, className="lane-key parts-key")],
                   className="panel-bar")  # fmt: skip
    sentence = f"Reserved bytes over {len(view.recording.trace):,} events, before and after."
    return html.Section([bar, graph("fi-graph", drawn, sentence, "steps")], className="panel chart",
                        **{"aria-label": "Reserved, before and after"})  # fmt: skip


# ---------------------------------------------------------------------------------- the strategies


def _strategies(found: Strategies) -> html.Section:
    phase = found.phase.name.lower().replace("_", " ")
    place = f", in {phase}" if found.phase != Phase.OTHER else ""
    bar = html.Div(
        [html.H3("What else would lower the peak"),
         html.Span(f"{format_bytes(found.peak_bytes)} allocated{place}", className="dim")],
        className="panel-bar",
    )  # fmt: skip
    label = {"aria-label": "What else would lower the peak"}
    if not found.advised:
        known = found.unknown_bytes < found.peak_bytes
        text = "Nothing that was tried." if known else "No categories are known, so nothing can be tried."
        return html.Section([bar, html.P(text, className="dim nothing")], className="panel", **label)
    doubt = "What it costs; how sure the bytes are"
    head = html.Tr([html.Th("In the order to try them"), html.Th("Saves", className="number"),
                    html.Th("Leaves", className="number"), html.Th(""), html.Th(doubt)])  # fmt: skip
    rows = [_strategy(each, found.peak_bytes) for each in found.advised[:_MOST_STRATEGIES]]
    table = html.Table([html.Thead(head), html.Tbody(rows)], className="diff fit-table")
    useless = f"No effect on the peak, so not advised: {'; '.join(found.without_effect)}."
    below = html.P(useless, className="dim fit-said") if found.without_effect else html.Span()
    path = html.P(_sentence(found.path), className="dim fit-said")
    return html.Section([bar, table, path if found.path else html.Span(), below], className="panel", **label)


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
            html.Td(format_bytes(each.peak_bytes), className="number", title=f"in {each.phase.name.lower()}"),
            html.Td(bar, className="fit-bar"),
            html.Td(doubt),
        ]
    )


# --------------------------------------------------------------------------------------- the batch


def _batch(fit: BatchFit, here: Verdict) -> Any:
    if fit.model is None:
        return html.Span()
    sizes = sorted({*fit.sizes[-4:], 2 * fit.sizes[-1], fit.largest})
    found = [(size, fit.at(size)) for size in sizes]
    head = html.Tr([html.Th(fit.unit.capitalize()), html.Th("Peak allocated", className="number"),
                    html.Th("In", className="number")])  # fmt: skip
    rows = [
        html.Tr([
            html.Td(f"{size:,}" + (", seen" if size in fit.sizes else "")),
            html.Td(f"{format_bytes(each.likely)} ± {format_bytes(each.high - each.likely)}",
                    className="number"),
            html.Td(each.phase.name.lower(), className="number dim"),
        ])
        for size, each in found if each is not None
    ]  # fmt: skip
    largest = fit.fitting(here.room)
    text = "Not even the smallest fits."
    if largest is not None and largest.size:
        at_least = "at least " if largest.is_limited_by_data else ""
        text = f"On the card chosen above fits {at_least}{largest.size:,} ({fit.unit})."
    bar = html.Div([html.H3("Another batch"), html.Span(text, className="dim")], className="panel-bar")
    table = html.Table([html.Thead(head), html.Tbody(rows)], className="diff fit-table")
    return html.Section([bar, table], className="panel", **{"aria-label": "Another batch"})


def _basis(fit: Fit) -> html.P:
    how = "as measured" if fit.outside_is_known else "assumed: the recording does not say"
    return html.P(
        f"Of each card {format_bytes(fit.outside)} are taken off for what is outside of the allocator "
        f"({how}). A replay makes the recorded requests again: a program that does something else "
        "under other settings is not foreseen, nor is the time that releases and mappings take.",
        className="dim fit-basis",
    )


def _register(_: Any, __: Data) -> None:
    """Links only: every choice is an address."""


PAGE = Page(name="fit", title="Fit", order=65, path="/fit", layout=_layout, register=_register)
