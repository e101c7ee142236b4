"""The page "Fit": which card is large enough, which allocator setting helps, what else lowers the peak."""

import math
import re
from dataclasses import dataclass
from typing import Any

from dash import Input, Output, State, dcc, html, no_update
from dash.exceptions import PreventUpdate

from vramscope.analysis.fit import BASIS, NOT_KNOWN, counted_reserved_bytes, unanswerable
from vramscope.analysis.fit.answer import FitAnswer, FitVerdict
from vramscope.model.cards import BASIS as CARDS_BASIS
from vramscope.model.cards import CARDS
from vramscope.units import format_bytes

from ..address import Address, restore
from ..components import scripts, states
from ..components.panel import panel
from ..components.panels import allocator_settings
from ..components.panels.allocator_settings import another_batch, savings
from ..components.prose import claim_heading, on_demand, sentence
from ..components.scripts import in_browser
from ..data import Data
from ..queries.settings_search import SettingsSearch, devices, searches, target, verdict, verdict_so_far
from ..server.callbacks import Stored
from . import Context, Page, counting

_AT_ONCE_S = 0.2
"""Seconds after which the page shows what is known so far: the cards of a long run need no replay."""
_POLL_MS = 400
_NOTCHES = 400
"""Steps of the slider, from half of what the run needs to the largest card or beyond, in equal ratios."""
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
    allowed: int | None = None
    """What the program's own fraction leaves of the device; None where it takes nothing."""


_WITHOUT_EVENTS = (
    "No more was reserved by torch's counters, so any device with that much room holds the run. Which "
    "setting, batch or change makes it fit a smaller one is not known: it has no events to replay."
)


def _layout(context: Context) -> Any:
    data, address = context.data, context.address
    view = data.view(address)
    if not len(view.recording.trace):
        if n_bytes := counted_reserved_bytes(view.recording):
            title = f"{format_bytes(n_bytes)} for the allocator are enough"
            return states.state(title, _WITHOUT_EVENTS, ["To see it: ", *states.to_record(view)])
        return states.nothing_recorded(view.is_live, view, lacks="what would fit")
    if why := unanswerable(view.recording):
        return states.without_answer("What would fit is not known", why.removeprefix(f"{NOT_KNOWN}: "))
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
                allocator_settings.settings_panel(search, address),
                html.Div(allocator_settings.reserved_panel(data, search, here.room, address), id="fi-curves"),
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
    return panel(title, beside=html.Span("running …", className="dim"), **{"aria-busy": "true"})


def printed(data: Data, search: SettingsSearch, address: Address) -> list[Any]:
    """Return what a report has of the page: all but the slider."""
    if search.fit is None or search.problem:
        return [html.P(search.problem, className="dim nothing")]
    here = _here(data, search, address)
    return [
        _opening(search.fit, here),
        html.Div(_cards(data, search, here, address), className="fit-cards"),
        allocator_settings.settings_panel(search, address),
        _savings(search),
        _batch(search, here),
        _basis(search.fit),
    ]


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
        chosen = allocator_settings.chosen(fit, address)
        found = verdict(data, view, fit, total, None)
        other = verdict(data, view, fit, total, chosen) if chosen else None
    reason = ""
    if found is FitVerdict.UNKNOWN and fit.without_limit is not None:
        reason = fit.judged_as_recorded(target(fit, total), fit.without_limit)[1]
    allowed = fit.allowed_on(target(fit, total))
    return DeviceVerdict(key, name, total, room, found, reason, other, allowed)


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
    small = f"{format_bytes(here.allowed)} of {name}" if here.allowed else name
    claim = {
        FitVerdict.FITS: f"It fits {name}" + (f", with {format_bytes(spare)} to spare" if spare > 0 else ""),
        FitVerdict.TIGHT: f"It just fits {name}: the cache has to be released to make room",
        FitVerdict.TOO_SMALL: f"It does not fit {small}",
        FitVerdict.UNKNOWN: f"Whether it fits {name} is not known",
        None: f"Whether it fits {name} is being checked by replay",
    }[here.word]
    if here.word is FitVerdict.TOO_SMALL and here.with_setting in (FitVerdict.FITS, FitVerdict.TIGHT):
        claim += "; with the setting below it would"
    text = _support(fit, here)
    if here.reason:
        text = f"{here.reason[:1].upper()}{here.reason[1:]}. {text}"
    text += f" {sentence(fit.limit_words)}" if fit.limit_words else ""
    if fit.is_peak_counted:
        text += " Settings, batches and savings rest on the steps that have events."
    text += f" {sentence(fit.growth)}" if fit.growth else ""
    return html.Section(
        [claim_heading(claim), html.P(text, className="support")],
        className="opening", **{"aria-live": "polite"},
    )  # fmt: skip


def _support(fit: FitAnswer, here: DeviceVerdict) -> str:
    reserved, allocated = fit.most_bytes
    is_open = fit.is_open if fit.prediction is None else not fit.prediction.is_bounded
    lacking, least = allocated - here.room, "at least " if is_open else ""
    why = f"; {least}{format_bytes(lacking)} too much with any setting" if lacking > 0 else ""
    if is_open:
        needs = f"{format_bytes(reserved)} reserved, {format_bytes(allocated)} allocated"
        what = "What was recorded needs" if fit.prediction is None else "By a dry run, it needs at least"
        return f"{what} {needs}{why}."
    if fit.without_limit is not None or fit.prediction is not None:
        is_as_recorded = here.word is FitVerdict.FITS and reserved == fit.recorded_peak_bytes
        limit = "" if is_as_recorded else "Without a limit "
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
    slider = scripts.box("fi-size", notch, type="range", min=0, max=_NOTCHES, step=1, className="fit-slider")
    label = html.Label([html.Span("On a device of", className="fit-slider-name"), *slider])
    size = html.Output(_size(here), id="fi-room", className="fit-room")
    shown = _cards(data, search, here, address)
    rows = {"--cards": str(len(shown)), "--half": str(-(-len(shown) // 2))}
    cards = html.Nav(shown, id="fi-cards", className="fit-cards", style=rows, **{"aria-label": "Cards"})
    sizes = html.Div([label, size], className="fit-size-row only-live")
    hint = html.Span("drag, or choose one", className="dim only-live")
    return panel("On which card", sizes, cards, beside=hint, label="Capacity")


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


def _cards(data: Data, search: SettingsSearch, here: DeviceVerdict, address: Address) -> list[Any]:
    return [
        html.A(
            [
                html.Span(_name_of(each), className="fit-size"),
                html.Span(
                    [html.I(_MARK[each.word], **{"aria-hidden": "true"}), _word(each)], className="fit-word"
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
    # A line may end within "A100/H100" at the slash alone.
    first, slash, rest = name.partition("/")
    return [first, *([slash, html.Wbr(), rest] if slash else []), html.Small(size)]


def _second(verdict: DeviceVerdict) -> str:
    is_sure = verdict.word is FitVerdict.FITS and verdict.with_setting is FitVerdict.UNKNOWN
    if is_sure or verdict.with_setting in (None, verdict.word):
        is_small = verdict.allowed and verdict.word is FitVerdict.TOO_SMALL
        return f"{format_bytes(verdict.room)} allowed" if is_small else ""
    return f"{verdict.with_setting.value} with the setting"


def _basis(fit: FitAnswer) -> html.Div:
    how = "as measured" if fit.is_outside_measured else "assumed: not recorded"
    text = (
        f"{format_bytes(fit.outside_bytes)} of each card are used outside of the allocator ({how}). "
        f"{sentence(CARDS_BASIS)} The figures are {BASIS}."
    )
    return html.Div(on_demand("What the figures rest on", html.P(text)), className="fit-basis")


def _register(app: Any, data: Data) -> None:
    scripts.register(app, "fi-size")
    in_browser(app, "addressed", Output("fi-done", "data"), Input("fi-by", "data"))

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
        return allocator_settings.searching(), False, [0, 0, 0, 0]

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
        low, high = _edges(fit)
        n_bytes = round(math.exp(low + (high - low) * min(max(at, 0), _NOTCHES) / _NOTCHES))
        address = address.go(by=f"{n_bytes >> 20}mib")
        here = _here(data, search, address)
        return (
            _opening(fit, here),
            _cards(data, search, here, address),
            allocator_settings.drawn(data, search, here.room, address),
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
        Input("fi-tick", "n_intervals"), Input("address", "data"), State("fi-by", "data"),
        State("fi-shown", "data"), prevent_initial_call=True,
    )  # fmt: skip
    def look(_: Any, stored: Stored | None, by: str | None, shown: list[int] | None) -> tuple[Any, ...]:
        """Renew the parts that are known better than they are shown."""
        search, address = _search(data, stored), restore(stored)
        is_done, now = search.is_done, _progress_of(search)
        if search.problem:
            return *(no_update for _ in range(8)), True, [states.failure(search.problem)]
        parts = _renewed(data, search, address.go(by=by) if by else address, shown or [])
        return *parts, allocator_settings.progress(search), now, is_done, no_update


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
        (newer[1], lambda: allocator_settings.settings(search, address)),
        (newer[1], lambda: allocator_settings.reserved_panel(data, search, here.room, address)),
        (newer[2], lambda: _savings(search)),
        (newer[3], lambda: _batch(search, here)),
    )
    return [make() if is_newer else no_update for is_newer, make in makers]


def _search(data: Data, stored: Stored | None) -> SettingsSearch:
    return searches(data).of(data.view(restore(stored)))


PAGE = Page(name="fit", title="Fit", order=65, path="/fit", layout=_layout, register=_register,
            behind=counting())  # fmt: skip
