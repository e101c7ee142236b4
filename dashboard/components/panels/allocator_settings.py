"""The panels of the page "Fit": allocator settings and their search, strategies, and other batch sizes."""

from typing import Any

import numpy as np
from dash import dcc, html

from vramscope.analysis.batch_fit import BatchFit
from vramscope.analysis.fit.answer import FitAnswer
from vramscope.analysis.settings_advice import SettingTrial
from vramscope.analysis.strategies import NOT_ESTIMATED, Strategies, Strategy
from vramscope.analysis.what_if import ReplayResult
from vramscope.model.marks import Phase
from vramscope.model.prediction import FITS_WORD
from vramscope.units import format_byte_range, format_bytes, format_name

from ...address import Address
from ...data import Data
from ...figures import curves
from ...queries.settings_search import SettingsSearch
from .. import panel as panels
from .. import states
from ..graph import graph
from ..panel import panel, table
from ..prose import on_demand, sentence

_POINTS = 1000
"""Points of the recorded curves: as many as a replay has."""
_MOST_STRATEGIES = 12


def chosen(fit: FitAnswer, address: Address) -> SettingTrial | None:
    """Return the setting that the address names, else the advised one; None until settings are known."""
    if fit.settings is None:
        return None
    named = [trial for trial in fit.settings.trials if trial.candidate.name == address.q]
    return named[0] if named else fit.settings.advised


def settings_panel(search: SettingsSearch, address: Address) -> html.Section:
    """Return the panel with all settings, as far as they are tried."""
    far = html.Div(progress(search), id="fi-progress")
    found = html.Div(settings(search, address), id="fi-settings")
    return panels.panel("Allocator settings", found, far, beside=html.Span("by replay", className="dim"))


def settings(search: SettingsSearch, address: Address) -> list[Any]:
    """Return the advice and the settings that were tried; while the search goes on, a way to stop it."""
    assert search.fit is not None  # noqa: S101 - for the type checker
    advice, trial = search.fit.settings, chosen(search.fit, address)
    if advice is None:
        return searching()
    parts = [] if search.is_whole else [_stopped(search)]
    if search.is_whole or advice.advised is not None:
        parts.append(html.P(sentence(advice.reason), className="fit-reason"))
    if advice.environment:
        copy = dcc.Clipboard(content=advice.environment, title="Copy", className="fit-copy only-live")
        parts.append(html.P([html.Span("Set before it starts ", className="dim"),
                            states.command(advice.environment), copy], className="fit-set"))  # fmt: skip
    if advice.advised is not None and advice.advised.candidate.call:
        call = advice.advised.candidate.call
        parts.append(html.P([html.Span("In the program ", className="dim"), states.command(call)],
                           className="fit-set"))  # fmt: skip
    if not search.fit.is_reproduced:
        recorded = format_bytes(advice.recorded_peak_bytes)
        text = f"An estimate: the replay of the recorded settings does not reproduce the peak, {recorded}."
        parts.append(html.P(text, className="dim"))
    note = html.Div(parts, className="fit-note")
    return [note, _trials(search, trial, address)] if advice.trials else [note]


def _stopped(search: SettingsSearch) -> html.P:
    again = html.Button("Try all", id="fi-again", className="fit-stop only-live")
    text = f"Stopped: {len(search.trials)} of {len(search.wanted)} settings were tried. "
    return html.P([text, again], className="fit-reason")


def _trials(search: SettingsSearch, chosen: SettingTrial | None, address: Address) -> html.Table:
    assert search.fit is not None  # noqa: S101 - for the type checker
    assert search.fit.settings is not None  # noqa: S101 - for the type checker
    advice = search.fit.settings
    base = advice.base
    rows: list[Any] = [["as it is", *_numbers(base, base)]]
    for trial in advice.trials:
        name = trial.candidate.name
        link = html.A(name, href=address.go(q=name).url, className="link")
        badge = html.Span("advised", className="badge badge-cuda") if trial is advice.advised else html.Span()
        named = html.Td([link, " ", badge], className="fit-here" if trial is chosen else None)
        rows.append([named, *_numbers(trial.outcome, base)])
    untried, left = html.Td("not tried", className="number dim"), search.wanted[len(advice.trials) :]
    rows += [[html.Td(candidate.name, className="dim"), untried, "", "", ""] for candidate in left]
    columns = ["Setting", "Peak reserved", "Change", "cudaMalloc calls", "Cache released"]
    if not any(outcome.fits for outcome in (base, *(trial.outcome for trial in advice.trials))):
        columns, rows = columns[:2], [row[:2] for row in rows]  # a row without figures fills no other column
    return panels.table(columns, "lrrdd"[: len(columns)], rows, "fit-table")


def _numbers(outcome: ReplayResult, base: ReplayResult) -> list[Any]:
    if not outcome.fits:
        return [html.Td("out of memory", className="number verdict-bad"), "", "", ""]
    change = outcome.peak_reserved_bytes - base.peak_reserved_bytes
    same = "" if outcome is base else "none"
    changed = f"{'+' if change > 0 else '−'}{format_bytes(abs(change))}" if change else same
    tone = "number strong fit-less" if change < 0 else "number"
    # Expandable segments map memory without cudaMalloc.
    calls = f"{outcome.n_mappings:,} mapped" if outcome.n_mappings else f"{outcome.n_segments:,}"
    return [
        outcome.peak_reserved_bytes,
        html.Td(changed, className=tone, title=f"{change:+,} bytes"),
        calls,
        f"{outcome.n_retries:,} ×" if outcome.n_retries else "never",
    ]


def searching() -> list[Any]:
    """Return what stands in the place of the settings until the search ends."""
    stop = html.Button("Stop", id="fi-stop", className="fit-stop", title="Stops after the current replay")
    return [html.P(stop, className="fit-note")]


def progress(search: SettingsSearch) -> list[Any]:
    """Return how far the search for a setting is; nothing once it has ended."""
    if search.fit is not None and search.fit.settings is not None:
        return []
    trials, wanted = list(search.trials), search.wanted
    n_bytes = [trial.outcome.peak_reserved_bytes for trial in trials if trial.outcome.fits]
    best = min(
        trials, key=lambda trial: (not trial.outcome.fits, trial.outcome.peak_reserved_bytes), default=None
    )
    done = f"{len(trials)} of {len(wanted)}" if wanted else ""
    text = [html.Span(f"{search.stage} …"), html.Span(done, className="dim")]
    if best is not None and n_bytes:
        least = format_bytes(min(n_bytes))
        text.append(html.Span(f"best so far: {best.candidate.name}, {least}", className="dim"))
    bar = html.Progress(value=str(len(trials)), max=str(max(len(wanted), 1)), className="fit-bar-of-search",
                        **{"aria-label": "Settings tried"})  # fmt: skip
    rows = [
        [candidate.name, _so_far(trials[number] if number < len(trials) else None)]
        for number, candidate in enumerate(wanted)
    ]
    table = panels.table(("Setting", "Peak reserved"), "lr", rows, "fit-table fit-so-far")
    found = [html.P(text, className="fit-stage"), bar, *([table] if rows else [])]
    return [html.Div(found, className="fit-note", **{"aria-busy": "true"})]


def _so_far(trial: SettingTrial | None) -> Any:
    if trial is None or trial.outcome.fits:
        return "…" if trial is None else trial.outcome.peak_reserved_bytes
    return html.Td("out of memory", className="number verdict-bad")


def drawn(data: Data, search: SettingsSearch, room: int, address: Address) -> dict[str, Any]:
    """Return the figure of the bytes that are reserved, as it is and with the chosen setting."""
    assert search.fit is not None  # noqa: S101 - for the type checker
    known = data.ask(search.view, "timeline")
    advice, trial = search.fit.settings, chosen(search.fit, address)
    if advice is None:
        n_events = len(search.view.recording.trace)
        events = np.unique(np.linspace(0, n_events - 1, min(n_events, _POINTS)).astype("i8"))
        reserved = curves.outline(events, known.reserved_bytes)
    else:
        events, reserved = advice.base.events, advice.base.reserved_bytes
    before = curves.NamedCurve("reserved, as it is", events, reserved)
    allocated = curves.NamedCurve("allocated", events, curves.outline(events, known.allocated_bytes))
    after = None
    if trial is not None:
        after = curves.NamedCurve(trial.candidate.name, trial.outcome.events, trial.outcome.reserved_bytes)
    return curves.figure(before, after, allocated, room)


def reserved_panel(data: Data, search: SettingsSearch, room: int, address: Address) -> html.Section:
    """Return the panel with that figure."""
    assert search.fit is not None  # noqa: S101 - for the type checker
    trial = chosen(search.fit, address)
    words = [("before", "as it is (dotted)"), ("allocated", "allocated")]
    words += [("after", trial.candidate.name)] if trial else []
    words.append(("capacity", "what the allocator can reserve on the card"))
    key = panels.color_key(((curves.COLOR[kind], word) for kind, word in words), "parts")
    caption = f"Reserved bytes over {len(search.view.recording.trace):,} events, before and after."
    figure = drawn(data, search, room, address)
    picture = graph("fi-graph", figure, caption, "steps")
    return panels.panel("Reserved", picture, beside=key, kind="chart", label="Reserved, before and after")


def savings(found: Strategies) -> html.Section:
    """Return the table of strategies that lower the peak, in the order to try them."""
    phase = format_name(found.phase)
    place = f", in {phase}" if found.phase != Phase.OTHER else ""
    title = "What else would lower the peak"
    beside = html.Span(f"{format_bytes(found.peak_bytes)} allocated{place}", className="dim")
    texts = filter(None, (found.open_words, NOT_ESTIMATED))
    open_ones = [html.P(sentence(text), className="dim") for text in texts]
    if not found.advised:
        text = "No strategy that was tried lowers the recorded peak."
        if found.unknown_bytes >= found.peak_bytes:
            text = "No categories are known, so nothing can be tried."
        shown = html.Div([html.P(text, className="dim"), *open_ones], className="fit-note")
        return panel(title, shown, beside=beside)
    columns = ("In the order to try them", "Saves", "Leaves", "", "What it costs")
    rows = [_strategy(each, found.peak_bytes) for each in found.advised[:_MOST_STRATEGIES]]
    shown = table(columns, "lrrll", rows, "fit-table fit-savings")
    useless = f"Does not lower the peak, so not advised: {'; '.join(found.without_effect)}."
    below = [html.P(useless, className="dim")] if found.without_effect else []
    left_out = on_demand("What else was tried, and what is not estimated", *below, *open_ones)
    path = html.P(sentence(found.path), className="dim fit-note") if found.path else html.Span()
    return panel(title, shown, path, html.Div(left_out, className="fit-note"), beside=beside)


def _strategy(each: Strategy, peak: int) -> list[Any]:
    parts = ", ".join(
        f"{format_bytes(n)} {name.replace('_', ' ')}" for name, n in each.by_category.items() if n > 0
    )
    name = html.Div([html.Span(each.name, className="strong"), html.Div(each.how, className="fit-how")])
    saved = html.Span(format_bytes(each.saved_bytes), title=f"{each.saved_bytes:,} bytes: {parts}")
    leaves, span = format_bytes(each.peak_bytes), format_byte_range(each.low_bytes, each.high_bytes)
    left = [leaves, html.Small("" if span == leaves else span)]
    basis = on_demand("how sure the bytes are", html.P(each.basis))
    doubt = html.Div([html.Div(each.cost), basis], className="fit-why")
    return [
        name,
        html.Td(saved, className="number strong"),
        html.Td(left, className="number", title=f"in {format_name(each.phase)}"),
        html.Td(panels.bar(each.peak_bytes / max(peak, 1), "less"), className="fit-bar"),
        doubt,
    ]


def another_batch(fit: BatchFit, room: int) -> Any:
    """Return the table of what other batch sizes need.

    *room* are the bytes that the allocator can reserve on the chosen card.
    """
    if fit.model is None:
        return html.Span()
    columns = ("Batch", "Peak allocated", "At least, at most", "Reserved", "In", "On the card above")
    rows = [
        [
            fit.named(size),
            each.likely_bytes,
            format_byte_range(each.low_bytes, each.high_bytes),
            "" if each.reserved_bytes is None else each.reserved_bytes,
            format_name(each.phase),
            FITS_WORD[each.fits(room)],
        ]
        for size, each in fit.rows()
    ]
    largest = fit.fitting(room)
    text = "Not even the smallest surely fits."
    if largest is not None and largest.size:
        at_least = "at least " if largest.is_limited_by_data else ""
        text = f"The largest batch that surely fits the card above: {at_least}{fit.named(largest.size)}."
    shown = table(columns, "lrdrdr", rows, "fit-table")
    return panel("Another batch", shown, beside=html.Span(text, className="dim"))
