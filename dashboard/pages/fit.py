"""The page "Fit": which card is large enough, which allocator setting helps, what else lowers the peak."""

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from dash import ClientsideFunction, Input, Output, State, dcc, html, no_update
from dash.exceptions import PreventUpdate

from vramscope.analysis.fit import BASIS
from vramscope.analysis.fit.answer import FitAnswer, FitVerdict
from vramscope.analysis.settings_advice import Candidate, SettingTrial
from vramscope.analysis.what_if import ReplayResult
from vramscope.model.cards import BASIS as CARDS_BASIS
from vramscope.model.cards import CARDS
from vramscope.units import format_bytes, format_share

from ..address import Address, restore
from ..components import states, typed
from ..components.graph import graph
from ..components.panels.savings import another_batch, savings
from ..components.prose import claim_heading, sentence
from ..data import Data
from ..figures import curves
from ..queries.settings_search import (
    SettingsSearch,
    devices,
    searches,
    target,
    verdict,
    verdict_so_far,
)
from ..server.callbacks import Stored
from . import Context, Page

_AT_ONCE_S = 0.2
"""Seconds after which the page shows what is known so far: the cards of a long run need no replay."""
_POLL_MS = 400
_NOTCHES = 400
"""Steps of the slider, from half of what the run needs to the largest card or beyond, in equal ratios."""
_POINTS = 1000
"""Points of the recorded curves: as many as a replay has."""
_LARGEST = 192 << 30
_LEAST = 64 << 20


@dataclass(frozen=True, slots=True)
class DeviceVerdict:
    """The verdict for one device, for the program as it is and with the chosen setting."""

    key: str
    """Word in the address."""
    name: str
    total_bytes: int
    room: int
    """Bytes that the allocator can reserve."""
    word: FitVerdict | None
    """None while a replay is checking it."""
    reason: str = ""
    """Why the word is ``unknown``."""
    with_setting: FitVerdict | None = None
    """The verdict with the chosen setting; None where none is chosen."""


def _layout(context: Context) -> Any:
    data, address = context.data, context.address
    view = data.view(address)
    if not len(view.recording.trace):
        return states.nothing_recorded(view.is_live)
    search = searches(data).of(view)
    search.wait_for_recorded()
    search.wait(_AT_ONCE_S)
    # First what is shown, then its content: a search that goes on meanwhile is shown by the next poll.
    is_done, shown = search.is_done, _progress_of(search)
    return [
        html.Div(_body(data, search, address), id="fi-body", className="fit-body"),
        dcc.Interval(id="fi-tick", interval=_POLL_MS, disabled=is_done),
        dcc.Store(id="fi-by"),
        dcc.Store(id="fi-done"),
        dcc.Store(id="fi-shown", data=shown),
    ]  # fmt: skip


def _body(data: Data, search: SettingsSearch, address: Address) -> list[Any]:
    if search.fit is None or search.problem:
        return [states.failure(search.problem)]
    fit = search.fit
    here = _here(data, search, address)
    return [
        html.Div(_opening(fit, here), id="fi-opening"),
        _capacity(data, search, here, address),
        html.Div(
            [
                _settings_panel(search, address),
                html.Div(_curves(data, search, here, address), id="fi-curves"),
            ],
            className="fit-pair",
        ),
        html.Div(_savings(search), id="fi-savings"),
        html.Div(_batch(search, here), id="fi-batch"),
        _basis(fit),
    ]


def _progress_of(search: SettingsSearch) -> list[int]:
    """Return how far each part of the page is known: verdicts, settings with curves, savings, batches."""
    fit = search.fit
    if fit is None:
        return [0, 0, 0, 0]
    has_settings = fit.settings is not None
    return [
        1 + (fit.without_limit is not None) + search.is_done,
        has_settings + search.is_done,
        int(fit.strategies is not None),
        int(fit.batch is not None),
    ]


def _savings(search: SettingsSearch) -> Any:
    assert search.fit is not None  # noqa: S101 - for the type checker
    found = search.fit.strategies
    return _running("What else would lower the peak") if found is None else savings(found)


def _batch(search: SettingsSearch, here: DeviceVerdict) -> Any:
    assert search.fit is not None  # noqa: S101 - for the type checker
    found = search.fit.batch
    return _running("Another batch") if found is None else another_batch(found, here.room)


def _running(title: str) -> html.Section:
    """Return the place of a part that is being computed."""
    bar = html.Div([html.H3(title), html.Span("running …", className="dim")], className="panel-bar")
    return html.Section([bar], className="panel", **{"aria-label": title, "aria-busy": "true"})


def printed(data: Data, search: SettingsSearch, address: Address) -> list[Any]:
    """Return what a report has of the page: all but the slider."""
    if search.fit is None or search.problem:
        return [html.P(search.problem, className="dim nothing")]
    here = _here(data, search, address)
    return [
        _opening(search.fit, here),
        html.Div(_cards(data, search, here, address), className="fit-cards"),
        _settings_panel(search, address),
        _savings(search),
        _batch(search, here),
        _basis(search.fit),
    ]


# ------------------------------------------------------------------------------- during the search


def _searching() -> list[Any]:
    stop = html.Button("Stop", id="fi-stop", className="fit-stop", title="Stops after the current replay")
    return [html.P(stop, className="fit-note")]


def _progress(search: SettingsSearch) -> list[Any]:
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
        html.Tr([html.Td(candidate.name), *_so_far(trials[number] if number < len(trials) else None)])
        for number, candidate in enumerate(wanted)
    ]
    head = html.Tr([html.Th("Setting"), html.Th("Peak reserved", className="number")])
    table = [html.Table([html.Thead(head), html.Tbody(rows)], className="diff fit-table fit-so-far")]
    found = [html.P(text, className="fit-stage"), bar, *(table if rows else [])]
    return [html.Div(found, className="fit-note", **{"aria-busy": "true"})]


def _so_far(trial: SettingTrial | None) -> list[html.Td]:
    if trial is None:
        return [html.Td("…", className="number dim")]
    if not trial.outcome.fits:
        return [html.Td("out of memory", className="number verdict-bad")]
    return [html.Td(format_bytes(trial.outcome.peak_reserved_bytes), className="number")]


# ---------------------------------------------------------------------------------------- the card


def _verdicts(data: Data, search: SettingsSearch, address: Address) -> list[DeviceVerdict]:
    return [_verdict(data, search, address, device) for device in devices(search.view.recording)]


def _verdict(
    data: Data, search: SettingsSearch, address: Address, device: tuple[str, str, int]
) -> DeviceVerdict:
    key, name, total = device
    fit, view = search.fit, search.view
    assert fit is not None  # noqa: S101 - for the type checker
    room = fit.room_on(target(fit, total))
    if not search.is_done:
        found, other = verdict_so_far(fit, total), None  # a replay here would make the reader wait
    else:
        chosen = _chosen(fit, address)
        found = verdict(data, view, fit, total, None)
        other = verdict(data, view, fit, total, chosen) if chosen else None
    reason = ""
    if found is FitVerdict.UNKNOWN and fit.without_limit is not None:
        reason = fit.judged_as_recorded(target(fit, total), fit.without_limit)[1]
    return DeviceVerdict(key, name, total, room, found, reason, other)


def _here(data: Data, search: SettingsSearch, address: Address) -> DeviceVerdict:
    """Return the device that the address names; else this device, else the smallest that fits."""
    size = re.fullmatch(r"([0-9]{1,9})mib", address.by)
    if size:
        total = max(int(size[1]) << 20, 1)
        return _verdict(data, search, address, (address.by, format_bytes(total), total))
    verdicts = _verdicts(data, search, address)
    named = [each for each in verdicts if each.key == address.by]
    own = [each for each in verdicts if each.key == "this-device"]
    enough = [each for each in verdicts if each.word is FitVerdict.FITS]
    return (named or own or enough or verdicts[-1:])[0]


def _opening(fit: FitAnswer, here: DeviceVerdict) -> html.Section:
    phrases = {card.label: card.phrase for card in CARDS}
    name = phrases.get(here.name, here.name if here.key == "this-device" else f"a card of {here.name}")
    spare = here.room - fit.most_bytes[0]
    claim = {
        FitVerdict.FITS: f"It fits {name}" + (f", with {format_bytes(spare)} to spare" if spare > 0 else ""),
        FitVerdict.TIGHT: f"It just fits {name}: the cache has to be released to make room",
        FitVerdict.TOO_SMALL: f"It does not fit {name}",
        FitVerdict.UNKNOWN: f"Whether it fits {name} is not known",
        None: f"Whether it fits {name} is being checked by replay",
    }[here.word]
    if here.word is FitVerdict.TOO_SMALL and here.with_setting in (FitVerdict.FITS, FitVerdict.TIGHT):
        claim += "; with the setting below it would"
    text = _support(fit, here)
    if here.reason:
        text = f"{here.reason[:1].upper()}{here.reason[1:]}. {text}"
    if fit.limit_bytes is not None and fit.own_total_bytes:
        share = format_share(fit.limit_bytes, fit.own_total_bytes)
        text += f" The program limits itself to {share} of a device (set_per_process_memory_fraction)."
    return html.Section(
        [claim_heading(claim), html.P(text, className="support")],
        className="opening", **{"aria-live": "polite"},
    )  # fmt: skip


def _support(fit: FitAnswer, here: DeviceVerdict) -> str:
    reserved, allocated = fit.most_bytes
    is_open = bool(fit.ending) if fit.prediction is None else not fit.prediction.is_bounded
    lacking, least = allocated - here.room, "at least " if is_open else ""
    why = f"; {least}{format_bytes(lacking)} too much with any setting" if lacking > 0 else ""
    if is_open:
        needs = f"{format_bytes(reserved)} reserved, {format_bytes(allocated)} allocated"
        what = "What was recorded needs" if fit.prediction is None else "By a dry run, it needs at least"
        return f"{what} {needs}{why}."
    if fit.without_limit is not None or fit.prediction is not None:
        limit = "" if here.word is FitVerdict.FITS else "Without a limit "
        return (
            f"{limit}{format_bytes(reserved)} are reserved at most, {format_bytes(allocated)} allocated{why}."
        )
    most = f"{format_bytes(reserved)} were reserved at most, " if reserved else ""
    return f"As recorded, {most}{format_bytes(allocated)} allocated{why}."


_MARK = {FitVerdict.FITS: "●", FitVerdict.TIGHT: "◐", FitVerdict.TOO_SMALL: "○", FitVerdict.UNKNOWN: "?",
         None: "…"}  # fmt: skip


def _capacity(data: Data, search: SettingsSearch, here: DeviceVerdict, address: Address) -> html.Section:
    assert search.fit is not None  # noqa: S101 - for the type checker
    fit = search.fit
    notch = str(_notch(fit, here.total_bytes))
    slider = typed.box("fi-size", notch, type="range", min=0, max=_NOTCHES, step=1, className="fit-slider")
    label = html.Label([html.Span("On a device of", className="fit-slider-name"), *slider])
    size = html.Output(_size(here), id="fi-room", className="fit-room")
    bar = html.Div([html.H3("On which card"), html.Span("drag, or choose one", className="dim only-live")],
                   className="panel-bar")  # fmt: skip
    shown = _cards(data, search, here, address)
    rows = {"--cards": str(len(shown)), "--half": str(-(-len(shown) // 2))}
    cards = html.Nav(shown, id="fi-cards", className="fit-cards", style=rows, **{"aria-label": "Cards"})
    return html.Section(
        [bar, html.Div([label, size], className="fit-size-row only-live"), cards],
        className="panel", **{"aria-label": "Capacity"},
    )  # fmt: skip


def _size(here: DeviceVerdict) -> list[Any]:
    outside = f"{format_bytes(here.room)} for the allocator"
    return [html.Strong(format_bytes(here.total_bytes)), html.Span(outside, className="dim")]


def _edges(fit: FitAnswer) -> tuple[float, float]:
    """Return the logarithms of the bytes at both ends of the slider, which no replay changes."""
    allocated, outside = fit.recorded_allocated_bytes, fit.outside_bytes
    most = max(fit.recorded_peak_bytes, allocated)
    least = max((allocated + outside) / 2, _LEAST)
    return math.log(least), math.log(max(_LARGEST, 2 * (most + outside)))


def _notch(fit: FitAnswer, total_bytes: int) -> int:
    low, high = _edges(fit)
    return min(max(round((math.log(max(total_bytes, 1)) - low) / (high - low) * _NOTCHES), 0), _NOTCHES)


def _bytes_at(fit: FitAnswer, notch: int) -> int:
    low, high = _edges(fit)
    return round(math.exp(low + (high - low) * min(max(notch, 0), _NOTCHES) / _NOTCHES))


def _cards(data: Data, search: SettingsSearch, here: DeviceVerdict, address: Address) -> list[Any]:
    return [
        dcc.Link(
            [
                html.Span(_name_of(each), className="fit-size"),
                html.Span(
                    [html.I(_MARK[each.word], **{"aria-hidden": "true"}), _word(each)],
                    className="fit-word",
                ),
                html.Span(_second(each), className="fit-more"),
            ],
            href=address.go(by=each.key).url,
            title=f"{format_bytes(each.total_bytes)} as torch sees it",
            className=f"fit-card fit-{_word(each).replace(' ', '-')}"
            + (" here" if each.key == here.key else ""),
        )
        for each in _verdicts(data, search, address)
    ]


def _word(verdict: DeviceVerdict) -> str:
    return "checking" if verdict.word is None else verdict.word.value


def _name_of(verdict: DeviceVerdict) -> list[Any]:
    """Return the name of the card, and below it the memory that it is sold with."""
    found = re.fullmatch(r"(.+?) (\d+ GB)", verdict.name)
    name, size = found.groups() if found else (verdict.name, format_bytes(verdict.total_bytes))
    return [name, html.Small(size)]


def _second(verdict: DeviceVerdict) -> str:
    if verdict.with_setting in (None, verdict.word):
        return ""
    return f"{verdict.with_setting.value} with the setting"


# ------------------------------------------------------------------------------------ the settings


def _chosen(fit: FitAnswer, address: Address) -> SettingTrial | None:
    """Return the setting that the address names, else the advised one; None until settings are known."""
    if fit.settings is None:
        return None
    named = [trial for trial in fit.settings.trials if trial.candidate.name == address.q]
    return named[0] if named else fit.settings.advised


def _settings_panel(search: SettingsSearch, address: Address) -> html.Section:
    bar = html.Div([html.H3("Allocator settings"), html.Span("by replay", className="dim")],
                   className="panel-bar")  # fmt: skip
    far = html.Div(_progress(search), id="fi-progress")
    found = html.Div(_settings(search, address), id="fi-settings")
    return html.Section([bar, far, found], className="panel", **{"aria-label": "Allocator settings"})


def _settings(search: SettingsSearch, address: Address) -> list[Any]:
    assert search.fit is not None  # noqa: S101 - for the type checker
    advice, chosen = search.fit.settings, _chosen(search.fit, address)
    if advice is None:
        return _searching()
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
    return [note, _trials(search, chosen, address)] if advice.trials else [note]


def _stopped(search: SettingsSearch) -> html.P:
    again = html.Button("Try all", id="fi-again", className="fit-stop only-live")
    text = f"Stopped: {len(search.trials)} of {len(search.wanted)} settings were tried. "
    return html.P([text, again], className="fit-reason")


def _trials(search: SettingsSearch, chosen: SettingTrial | None, address: Address) -> html.Table:
    assert search.fit is not None  # noqa: S101 - for the type checker
    assert search.fit.settings is not None  # noqa: S101 - for the type checker
    advice = search.fit.settings
    words = ("Peak reserved", "Change", "cudaMalloc calls", "Cache released")
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
    rows += [_untried(candidate) for candidate in search.wanted[len(advice.trials) :]]
    return html.Table([html.Thead(head), html.Tbody(rows)], className="diff fit-table")


def _untried(candidate: Candidate) -> html.Tr:
    name, untried = html.Td(candidate.name, className="dim"), html.Td("not tried", className="number dim")
    return html.Tr([name, untried, *(html.Td() for _ in range(3))])


def _numbers(outcome: ReplayResult, base: ReplayResult) -> list[html.Td]:
    if not outcome.fits:
        return [html.Td("out of memory", className="number verdict-bad", colSpan=4)]
    change = outcome.peak_reserved_bytes - base.peak_reserved_bytes
    sign = "+" if change > 0 else "−" if change else ""
    tone = "number strong fit-less" if change < 0 else "number"
    return [
        html.Td(format_bytes(outcome.peak_reserved_bytes), className="number",
                title=f"{outcome.peak_reserved_bytes:,} bytes"),
        html.Td(f"{sign}{format_bytes(abs(change))}" if change else "", className=tone,
                title=f"{change:+,} bytes"),
        html.Td(_calls(outcome), className="number dim"),
        html.Td(f"{outcome.n_retries:,} ×" if outcome.n_retries else "never", className="number dim"),
    ]  # fmt: skip


def _calls(outcome: ReplayResult) -> str:
    """Return the number of cudaMalloc calls, or of mappings: expandable segments map memory without it."""
    return f"{outcome.n_mappings:,} mapped" if outcome.n_mappings else f"{outcome.n_segments:,}"


def _drawn(data: Data, search: SettingsSearch, here: DeviceVerdict, address: Address) -> dict[str, Any]:
    assert search.fit is not None  # noqa: S101 - for the type checker
    known = data.ask(search.view, "timeline")
    advice, chosen = search.fit.settings, _chosen(search.fit, address)
    if advice is None:
        n_events = len(search.view.recording.trace)
        events = np.unique(np.linspace(0, n_events - 1, min(n_events, _POINTS)).astype("i8"))
        reserved = curves.outline(events, known.reserved_bytes)
    else:
        events, reserved = advice.base.events, advice.base.reserved_bytes
    before = curves.NamedCurve("reserved, as it is", events, reserved)
    allocated = curves.NamedCurve("allocated", events, curves.outline(events, known.allocated_bytes))
    after = None
    if chosen is not None:
        after = curves.NamedCurve(chosen.candidate.name, chosen.outcome.events, chosen.outcome.reserved_bytes)
    return curves.figure(before, after, allocated, here.room)


def _curves(data: Data, search: SettingsSearch, here: DeviceVerdict, address: Address) -> html.Section:
    assert search.fit is not None  # noqa: S101 - for the type checker
    chosen = _chosen(search.fit, address)
    words = [("before", "as it is (dotted)"), ("allocated", "allocated")]
    words += [("after", chosen.candidate.name)] if chosen else []
    words.append(("capacity", "what the allocator can reserve on the card"))
    key = [html.Span([html.I(className="swatch", style={"background": curves.COLOR[kind]}), word])
           for kind, word in words]  # fmt: skip
    bar = html.Div([html.H3("Reserved"), html.Div(key, className="lane-key parts-key")],
                   className="panel-bar")  # fmt: skip
    sentence = f"Reserved bytes over {len(search.view.recording.trace):,} events, before and after."
    drawn = _drawn(data, search, here, address)
    return html.Section([bar, graph("fi-graph", drawn, sentence, "steps")], className="panel chart",
                        **{"aria-label": "Reserved, before and after"})  # fmt: skip


def _basis(fit: FitAnswer) -> html.P:
    how = "as measured" if fit.is_outside_measured else "assumed: not recorded"
    limit = ""
    if fit.limit_bytes is not None:
        limit = f" The program limits itself to {format_bytes(fit.limit_bytes)} of the recorded device."
    return html.P(
        f"{format_bytes(fit.outside_bytes)} of each card are used outside of the allocator ({how}).{limit} "
        f"{sentence(CARDS_BASIS)} The figures are {BASIS}.",
        className="dim fit-basis",
    )


# --------------------------------------------------------------------------------------- callbacks


def _register(app: Any, data: Data) -> None:
    typed.register(app, "fi-size")
    app.clientside_callback(
        ClientsideFunction("vramscope", "addressed"), Output("fi-done", "data"), Input("fi-by", "data"),
        prevent_initial_call=True,
    )  # fmt: skip

    _follow(app, data)

    @app.callback(
        Output("fi-stop", "children"), Output("fi-stop", "disabled"), Input("fi-stop", "n_clicks"),
        State("address", "data"), prevent_initial_call=True,
    )  # fmt: skip
    def stop(n: int | None, stored: Stored | None) -> tuple[str, bool]:
        if not n:
            raise PreventUpdate
        _search(data, stored).stop()
        return "Stopping …", True

    @app.callback(
        Output("fi-settings", "children", allow_duplicate=True),
        Output("fi-tick", "disabled", allow_duplicate=True),
        Output("fi-shown", "data", allow_duplicate=True),
        Input("fi-again", "n_clicks"), State("address", "data"), prevent_initial_call=True,
    )  # fmt: skip
    def again(n: int | None, stored: Stored | None) -> tuple[Any, bool, list[int]]:
        if not n:
            raise PreventUpdate
        searches(data).of(data.view(restore(stored)), again=True)
        return _searching(), False, [0, 0, 0, 0]

    @app.callback(
        Output("fi-opening", "children", allow_duplicate=True),
        Output("fi-cards", "children", allow_duplicate=True), Output("fi-graph", "figure"),
        Output("fi-batch", "children", allow_duplicate=True), Output("fi-room", "children"),
        Output("fi-by", "data"),
        Input("fi-size", "data"), State("address", "data"), State("fi-by", "data"),
        prevent_initial_call=True,
    )  # fmt: skip
    def size(notch: str | int | None, stored: Stored | None, by: str | None) -> tuple[Any, ...]:
        search, address = _search(data, stored), restore(stored)
        fit = search.fit
        if fit is None or not re.fullmatch("[0-9]{1,9}", str(notch)):
            raise PreventUpdate
        here = _here(data, search, address)
        at = int(str(notch))
        if by is None and at == _notch(fit, here.total_bytes):
            raise PreventUpdate  # the slider has not been moved yet
        address = address.go(by=f"{_bytes_at(fit, at) >> 20}mib")
        here = _here(data, search, address)
        return (
            _opening(fit, here),
            _cards(data, search, here, address),
            _drawn(data, search, here, address),
            _batch(search, here),
            _size(here),
            address.by,
        )


def _follow(app: Any, data: Data) -> None:
    """Register the callback that shows a search while it goes on."""

    @app.callback(
        Output("fi-opening", "children"), Output("fi-cards", "children"), Output("fi-settings", "children"),
        Output("fi-curves", "children"), Output("fi-savings", "children"), Output("fi-batch", "children"),
        Output("fi-progress", "children"), Output("fi-shown", "data"), Output("fi-tick", "disabled"),
        Output("fi-body", "children"),
        Input("fi-tick", "n_intervals"), State("address", "data"), State("fi-by", "data"),
        State("fi-shown", "data"), prevent_initial_call=True,
    )  # fmt: skip
    def look(_: Any, stored: Stored | None, by: str | None, shown: list[int] | None) -> tuple[Any, ...]:
        """Renew the parts that are known better than they are shown."""
        search, address = _search(data, stored), restore(stored)
        is_done, now = search.is_done, _progress_of(search)
        if search.problem:
            return *(no_update for _ in range(8)), True, [states.failure(search.problem)]
        parts = _renewed(data, search, address.go(by=by) if by else address, shown or [])
        return *parts, _progress(search), now, is_done, no_update


def _renewed(data: Data, search: SettingsSearch, address: Address, shown: list[int]) -> list[Any]:
    """Return the content of each part of the page that is known better than *shown*."""
    fit, now = search.fit, _progress_of(search)
    newer = [far > old for far, old in zip(now, shown, strict=False)]
    if fit is None or len(newer) != len(now) or not any(newer):
        return [no_update] * 6
    here = _here(data, search, address)
    makers = (
        (newer[0], lambda: _opening(fit, here)),
        (newer[0], lambda: _cards(data, search, here, address)),
        (newer[1], lambda: _settings(search, address)),
        (newer[1], lambda: _curves(data, search, here, address)),
        (newer[2], lambda: _savings(search)),
        (newer[3], lambda: _batch(search, here)),
    )
    return [make() if is_newer else no_update for is_newer, make in makers]


def _search(data: Data, stored: Stored | None) -> SettingsSearch:
    return searches(data).of(data.view(restore(stored)))


PAGE = Page(name="fit", title="Fit", order=65, path="/fit", layout=_layout, register=_register,
            is_prefetched=False)  # fmt: skip
