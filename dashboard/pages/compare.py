"""The page "Compare": what changed from one run or rank to another, step by step."""

import re
from typing import Any

import numpy as np
from dash import Input, Output, State, dcc, html
from dash.exceptions import PreventUpdate

from vramscope.analysis.compare import TOLERANCE, Comparison
from vramscope.analysis.compare.call_trees import TreeDifference, overlaid
from vramscope.analysis.compare.names import common_names
from vramscope.analysis.lines import place_words
from vramscope.analysis.verdicts import undecided_difference
from vramscope.errors import VramscopeError
from vramscope.package_data import rows as table_rows
from vramscope.units import format_bytes, format_count, format_share

from ..address import UNZOOMED, Address, restore
from ..answers import fullest, totals, tree_at
from ..components import header, renewal, states
from ..components.graph import graph
from ..components.panel import color_key, panel, titled
from ..components.panels import call_tree, ranks
from ..components.panels.differences import Difference, table
from ..components.panels.stack_table import stack_of
from ..components.prose import claim_heading
from ..data import Data, View, answer
from ..figures import curves, icicle
from ..queries.rank_answers import opened_address
from ..server.callbacks import Stored, view_or_nothing
from . import Context, Page

MOST_CHOICES, MOST_CHANGES = 500, 20
MOST_EVENTS_AT_ONCE = 50_000
OTHER_MS = 2000
"""Milliseconds between two checks of the other run while it grows."""
_MANY_TIMES = 10
"""From how many times on a peak is given as such: nobody reads 29,903 percent."""
_RECORDING = re.compile(r"(.+)\.r(\d{1,6})\.d(\d{1,4})(?:\.n(\d{1,4}))?", re.ASCII)


def _layout(context: Context) -> Any:
    data, address = context.data, context.address
    view = data.view(address)
    if not len(view.recording.trace) and not len(view.recording.counters):
        return states.nothing_recorded(view.is_live, view)
    if not address.other:
        return [_question(view), *_together(data, view), _choice(data, view, address)]
    other = _other(data, address)
    is_later = data.pace.events_at_once < len(view.recording.trace) + len(other.recording.trace)
    is_later &= not (view.is_live or other.is_live)
    content = _first(data, view, other) if is_later else _content(data, view, address)
    later = dcc.Store(id="cp-later", data=1 if is_later else None)
    return [html.Div(content, id="cp-content", className="page"), later]


def _first(data: Data, view: View, other: View) -> list[Any]:
    """Return the peaks of two long recordings, before it is known what differs."""
    before, after = (int(totals(data, each).allocated_bytes[fullest(data, each)]) for each in (other, view))
    is_same = abs(after - before) < max(TOLERANCE * before, 1)
    claim = "The same peak, within a thousandth" if is_same else _difference(before, after)
    names = [*_names(view, other), html.Span(" · comparing steps and lines …", className="dim")]
    opening = [claim_heading(claim), html.P(names, className="support")]
    return [html.Section(opening, className="opening", **{"aria-busy": "true"})]


def _difference(before: int, after: int) -> str:
    change = after - before
    share = f" ({format_share(abs(change), before)})" if before else ""
    if 0 < _MANY_TIMES * before <= after:
        share = f" ({after / before:,.0f} times as much)"
    return f"{format_bytes(abs(change))} {'more' if change > 0 else 'less'} at the peak{share}"


def _names(view: View, other: View) -> list[Any]:
    return [html.Bdi(_name(other), className="function"), " → ", html.Bdi(_name(view), className="function")]


def _question(view: View) -> html.Section:
    """Return what the page shows before another run is chosen."""
    claim = claim_heading(["Compare ", html.Bdi(_name(view)), " with another run"])
    text = "Choose the baseline: another run, rank or device. Steps are compared by their number."
    return html.Section([claim, html.P(text, className="support")], className="opening")


def _content(data: Data, view: View, address: Address) -> list[Any]:
    other = _other(data, address)
    found = _compared(data, view, other)
    follow = [dcc.Interval(id="cp-tick", interval=OTHER_MS)] if other.is_live else []
    has_lines = view.recording.has_allocations and other.recording.has_allocations
    return [
        _opening(found, view, other),
        *_steps(found),
        *_changes(found, view, _KINDS if has_lines else _KINDS[-1:]),
        *([_calls(data, view, other, address.root)] if has_lines else []),
        *_together(data, view),
        _choice(data, view, address),
        dcc.Store(id="cp-seen", data=other.version),
        *follow,
    ]


def _compared(data: Data, view: View, other: View) -> Comparison:
    """Return the comparison, computed once per version of both; for long live runs it may lag behind."""

    def make() -> Comparison:
        return data.derive(
            other, ("compare", view.key), lambda before: answer(before, "compare", other=view.recording)
        )

    for each, aside in ((other, view), (view, other)):
        if each.is_live and len(each.recording.trace) > MOST_EVENTS_AT_ONCE:
            return data.answers(each).lagging(("compare", aside.key[0], aside.key[2:]), make)
    return make()


def _together(data: Data, view: View) -> list[Any]:
    beside = ranks.panel(data, view)
    return [beside] if beside is not None else []


def _other(data: Data, address: Address) -> View:
    """Return the baseline: the recording that the address names, else that of the run with most events."""
    named = _RECORDING.fullmatch(address.other)
    if named:
        rank, device, restart = (None if each is None else int(each) for each in named.groups()[1:])
        return data.view(Address("/", named[1], rank, device, restart))
    try:
        other = opened_address(data, Address(run=address.other, rank=address.rank, device=address.device))
        return data.view(other)
    except VramscopeError:
        return data.view(opened_address(data, Address(run=address.other)))


def _name(view: View) -> str:
    recording = header.name_of(view.recording) if len(view.run.recordings) > 1 else ""
    return " · ".join(word for word in (view.run.name[:120], recording) if word)


def _opening(found: Comparison, view: View, other: View) -> html.Section:
    before, after = found.peak_before_bytes, found.peak_after_bytes
    undecided = undecided_difference(other.recording, view.recording)
    if not found.changes:
        claim = "The same, within a thousandth of the peak"
    elif after == before:
        claim = "The same peak, of different parts"
    else:
        claim = _difference(before, after)
    if undecided:
        claim = f"{claim}, in what was recorded"
    steps = (
        f"{format_count(len(found.steps), 'step')} side by side"
        if len(found.steps)
        else "Whole recordings side by side"
    )
    alone = [
        f"{format_count(n, 'step')} only {word}"
        for n, word in ((found.only_before, "before"), (found.only_after, "after"))
        if n and len(found.steps)
    ]
    said = [undecided] if undecided else []
    support = html.P(
        [*_names(view, other), html.Span(f" · {'; '.join([steps, *alone, *said])}", className="dim")],
        className="support",
    )
    kinds = "; ".join(found.in_kind)[:600]
    in_kind = [html.P([html.Strong("In kind: "), html.Bdi(kinds)])] if kinds else []
    return html.Section([claim_heading(claim), *in_kind, support], className="opening")


def _steps(found: Comparison) -> list[Any]:
    if len(found.steps) < 2:
        return []
    levels = np.stack([found.after_bytes, found.before_bytes])
    is_known = (levels >= 0).all(axis=0)
    steps, levels = found.steps[is_known], levels[:, is_known]
    if len(steps) < 2:
        return []
    drawn = curves.growth(levels, ("after", "before"), steps, ("solid", "dot"))
    key = color_key(zip(curves.COLORS, ("after", "before (dotted)"), strict=False), "parts")
    picture = graph("cp-graph", drawn, f"Peaks of {len(steps)} steps, before and after.", "steps")
    return [panel("Peak of each step", picture, beside=key, kind="chart", label="Peaks of both")]


def _overlaid(data: Data, view: View, other: View) -> TreeDifference:
    """Return the calls of both runs at their peaks, computed once per version of both."""
    trees = [tree_at(data, each, fullest(data, each)) for each in (other, view)]
    names = common_names(other.recording, view.recording)
    return data.derive(view, ("calls beside", other.key), lambda _: overlaid(trees[0], trees[1], names))


def _calls(data: Data, view: View, other: View, root: int | None) -> html.Section:
    found = _overlaid(data, view, other)
    drawn = icicle.difference(found, call_tree.known_root(found.tree, root))
    before, after = (format_bytes(int(n[0])) for n in (found.before_bytes, found.after_bytes))
    sentence = f"Calls that lead to the memory at the peaks: {before} before, {after} after."
    legend = color_key(((icicle.MORE, "more"), (icicle.LESS, "less"), (icicle.SAME, "as much")), "band")
    legend.children.append(html.Span("A box is as wide as the larger of both.", className="dim"))
    return call_tree.panel("cp", "Both peaks by call", found.tree, drawn, sentence, legend)


_KINDS = table_rows(__file__, "pages.tsv", "change")
"""Kind of change, title of its panel, which figure Before and After are, and what that means."""


def _changes(found: Comparison, view: View, kinds: list[list[str]]) -> list[Any]:
    if not found.changes:
        return []
    least = format_bytes(found.tolerance_bytes)
    panels = []
    for kind, title, figure, meaning in kinds:
        changes = found.of(kind)
        rows = [
            Difference(*_words(change), change.before_bytes, change.after_bytes, _stack(change, view))
            for change in changes[:MOST_CHANGES]
        ]
        more = f"the largest {MOST_CHANGES} of {len(changes)}" if len(changes) > MOST_CHANGES else ""
        body = table(rows, "Before", "After", f"No difference above {least}.", kind.capitalize())
        beside = html.Span(more, className="dim")
        heading = titled(title, figure, meaning)
        panels.append(panel(heading, body, beside=beside, kind="changes", label=title))
    return [panels[0], html.Div(panels[1:], className="thirds")]


def _stack(change: Any, view: View) -> int:
    """Return a stack of the changed line in the later run; 0 where the change is not a line."""
    place = change.place
    return stack_of(view.recording.stacks, place.file, place.line) if place is not None and place.file else 0


def _words(change: Any) -> tuple[str, str]:
    place = change.place
    if change.kind == "line" and place is not None and place.file:
        via = f": {place.via}" if place.via else ""
        module = f" [{change.module}]" if change.module else ""
        return f"{place.function}{via}", place_words(place.file, place.line) + module
    is_between = (change.kind, change.name) == ("phase", "other")
    return "between phases" if is_between else change.name.replace("_", " "), ""


def _choice(data: Data, view: View, address: Address) -> html.Section:
    own = [
        (
            header.name_of(each),
            f"{view.run_id}.r{each.process.rank}.d{each.device.index}.n{each.process.restarts}",
        )
        for each in view.run.recordings
        if each is not view.recording
    ]
    found = data.runs.paths().items()
    places = [(path.relative_to(data.runs.root) if path.is_relative_to(data.runs.root) else path.name, name)
              for name, path in found if name != view.run_id]  # fmt: skip
    others = [(str(place), name) for place, name in places]
    links = [
        html.Li(html.A(html.Bdi(name), href=address.go(other=to, at=None, **UNZOOMED).url,
                         className="link here" if to == address.other else "link"))
        for name, to in (own + others)[:MOST_CHOICES]
    ]  # fmt: skip
    if not links:
        return states.state(
            "Nothing to compare with",
            "This folder holds one recording only.",
            ["Record another into the same folder, or compare files: ", states.command("vramscope diff A B")],
        )
    title = "Compare with another" if address.other else "Compare with"
    return panel(title, html.Ul(links, className="others"))


def _register(app: Any, data: Data) -> None:
    renewal.register(app, data, "cp", _content)
    call_tree.register(app, "cp")

    @app.callback(
        Output("cp-content", "children", allow_duplicate=True),
        Input("cp-later", "data"), State("address", "data"), prevent_initial_call="initial_duplicate",
    )  # fmt: skip
    def compared(later: int | None, stored: Stored | None) -> Any:
        """Compare two long recordings after the page has their peaks."""
        if not later:
            raise PreventUpdate
        address = restore(stored)
        try:
            return _content(data, data.view(address), address)
        except VramscopeError as error:
            raise PreventUpdate from error

    @app.callback(
        Output("cp-icicle", call_tree.DRAWN), Output("cp-crumbs", "children"),
        Input("cp-root", "data"), State("address", "data"), prevent_initial_call=True,
    )  # fmt: skip
    def draw(root: int | None, stored: Stored | None) -> tuple[Any, Any]:
        address = restore(stored)
        view = view_or_nothing(data, address)
        found = _overlaid(data, view, _other(data, address))
        if root is None or (root and not call_tree.known_root(found.tree, root)):
            raise PreventUpdate
        return call_tree.as_data(icicle.difference(found, root)), call_tree.crumbs("cp", found.tree, root)

    @app.callback(
        Output("cp-content", "children", allow_duplicate=True),
        Input("cp-tick", "n_intervals"), State("cp-seen", "data"), State("address", "data"),
        prevent_initial_call=True,
    )  # fmt: skip
    def follow(_: Any, seen: int | None, stored: Stored | None) -> Any:
        """Follow the baseline; the shell follows the run of this page."""
        address = restore(stored)
        try:
            now = data.refresh(_other(data, address).run_id)
            if now == seen:
                raise PreventUpdate
            return _content(data, data.view(address), address)
        except VramscopeError as error:
            raise PreventUpdate from error


PAGE = Page(name="compare", title="Compare", order=80, path="/compare", layout=_layout, register=_register)
