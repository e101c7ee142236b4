"""The page "Ranks": all ranks in all steps, those that differ first, and two ranks beside each other.

It reads the summaries of the ranks and no events, so a thousand ranks open as fast as one.
"""

from typing import Any

import numpy as np
from dash import Input, Output, Patch, State, ctx, dcc, html
from dash.exceptions import PreventUpdate

from vramscope.analysis.rank_comparison import Fleet, imbalance_words, notes_of_ranks, odd_words
from vramscope.analysis.rank_comparison.heat_map import Quantity, heat_map
from vramscope.errors import VramscopeError
from vramscope.model.recording import Outcome
from vramscope.store.directory import ranks_of
from vramscope.units import format_bytes, format_count

from ..address import UNZOOMED, Address, restore
from ..components import header, states
from ..components.graph import graph
from ..components.panel import panel, segments
from ..components.panels.ranks import chosen, groups, pair, ranks_in_words, typical
from ..components.prose import claim_heading
from ..components.scripts import in_browser
from ..data import Data, View
from ..figures import rank_map
from ..figures.drawing.theme import byte_unit
from ..queries.rank_answers import RankAnswers, queries_of
from ..server.callbacks import Stored
from . import Behind, Context, Page

FOLLOW_MS = 5000
MOST_ODD, MOST_ENDED, MOST_NOTES = 8, 4, 8
QUANTITIES: tuple[Quantity, ...] = ("allocated", "reserved")
_REST = "Drag to zoom, click a cell for its rank"


def _layout(context: Context) -> Any:
    data, address = context.data, context.address
    path = data.runs.path(address.run)
    if path.is_file():
        text = (
            "Ranks are compared by what vramscope.record() writes for each of them. A file has one process."
        )
        return [header.bare(path.name), states.state("Nothing to compare", text)]
    found = queries_of(data).get(address.run)
    if not any(device.n_events for rank in found.read.summaries.values() for device in rank.devices):
        nothing = states.nothing_recorded(bool(found.fleet.running))
        return [_head(data, address, found), nothing, *_notes(found)]
    is_alone = found.fleet.n_ranks == found.fleet.world_size == 1
    return [
        _head(data, address, found),
        html.Div(_content(found, address), id="rk-content", className="page"),
        _heat(found, address),
        html.Section(pair(found, address, *chosen(found, address)), id="rk-pair", className="panel pad",
                     hidden=is_alone, **{"aria-label": "Two ranks"}),
        html.Div(groups(found.fleet, address), id="rk-groups", hidden=is_alone),
        *_notes(found),
        dcc.Interval(id="rk-tick", interval=FOLLOW_MS, disabled=not found.fleet.running),
        dcc.Store(id="rk-version", data=found.version),
        dcc.Store(id="rk-pick"),
        dcc.Store(id="rk-window"),
        dcc.Store(id="rk-shown"),
    ]  # fmt: skip


def _head(data: Data, address: Address, found: RankAnswers) -> html.Header:
    hosts = {summary.process.host for summary in found.read.summaries.values()}
    first = next(iter(found.read.summaries.values()))
    facts = [
        f"{found.fleet.n_ranks:,} of {format_count(found.fleet.world_size, 'rank')} recorded",
        format_count(len(hosts), "host"),
        next((f"torch {s.process.torch}" for s in found.read.summaries.values() if s.process.torch), ""),
        header.when(first.started_ns),
    ]
    name = str(data.runs.location(address.run)).rstrip("/").rpartition("/")[2]
    title = html.Div(
        [html.H1(name, className="run-name", title=name[:500]),
         html.Span(header.outcome_dot(_outcome(found)), id="rk-standing")],
        className="run-title",
    )  # fmt: skip
    return html.Header(
        html.Div([title, html.P(" · ".join(fact for fact in facts if fact), className="facts")]),
        className="run-header",
    )


def _outcome(found: RankAnswers) -> Outcome:
    present = {summary.outcome for summary in found.read.summaries.values()}
    order = (Outcome.RUNNING, Outcome.FAILED, Outcome.DIED, Outcome.FINISHED, Outcome.FILE)
    return next(outcome for outcome in order if outcome in present)


def _content(found: RankAnswers, address: Address) -> list[Any]:
    fleet = found.fleet
    rows = [*_problems(fleet, address), *_odd(fleet, address)]
    opening = html.Section(
        [claim_heading(_claim(fleet)), html.P(_support(fleet), className="support")], className="opening"
    )
    return [opening, html.Ul(rows, className="findings rank-list")] if rows else [opening]


def _claim(fleet: Fleet) -> str:
    if fleet.failure is not None:
        return f"Rank {fleet.failure.rank} ran out of memory first"
    if fleet.odd:
        n_odd = len({odd.rank for odd in fleet.odd})
        first = f"Rank {fleet.odd[0].rank} differs" if n_odd == 1 else f"{n_odd} ranks differ"
        return f"{first} from the ranks that should be like {'it' if n_odd == 1 else 'them'}"
    if fleet.ended:
        return f"{format_count(len(fleet.ended), 'rank')} ended early"
    if fleet.missing:
        return f"Nothing was recorded by {format_count(len(fleet.missing), 'rank')}"
    if fleet.n_ranks == 1:
        return "One rank: nothing to compare it with"
    return f"{fleet.n_ranks:,} ranks, in {format_count(len(fleet.groups), 'group')} of like ranks"


def _support(fleet: Fleet) -> str:
    found = fleet.imbalance
    if found is None:
        return "No two ranks of a group have a step in common." if fleet.n_ranks > 1 else ""
    words = imbalance_words(found)
    return f"{words[0].upper()}{words[1:]}."


def _problems(fleet: Fleet, address: Address) -> list[Any]:
    rows = []
    if fleet.failure is not None:
        failure = fleet.failure
        step = "" if failure.step is None else f" in step {failure.step}"
        text = (
            f"{format_bytes(failure.requested_bytes)} requested with {format_bytes(failure.allocated_bytes)} "
            f"allocated{step} ({failure.host})"
        )
        rows.append(_item("out of memory", "error", _rank_link(failure.rank, address), text))
    if fleet.missing:
        rows.append(_item("missing", "warning", ranks_in_words(fleet.missing), "recorded nothing"))
    for each in fleet.ended[:MOST_ENDED]:
        text = f"{each.outcome.value}{f' after step {each.last_step}' if each.last_step is not None else ''}"
        text += f": {each.error[:200]}" if each.error else ""
        rows.append(_item("ended early", "error", _rank_link(each.rank, address), f"{text} ({each.host})"))
    if len(fleet.ended) > MOST_ENDED:
        text = format_count(len(fleet.ended) - MOST_ENDED, "more rank")
        rows.append(_item("ended early", "error", text, "did not finish either"))
    return rows


def _odd(fleet: Fleet, address: Address) -> list[Any]:
    rows = []
    for odd in fleet.odd[:MOST_ODD]:
        # The words begin with the rank, which is a link here.
        rest = odd_words(odd).partition(f"rank {odd.rank}")[2].lstrip(", ")
        rows.append(_item("odd", "warning", _rank_link(odd.rank, address), rest))
    if len(fleet.odd) > MOST_ODD:
        rows.append(_item("odd", "warning", format_count(len(fleet.odd) - MOST_ODD, "more rank"), "differ"))
    return rows


def _item(word: str, tone: str, who: Any, text: str) -> html.Li:
    return html.Li(
        [html.Span(word, className=f"severity {tone}"), html.Span([who, " ", html.Bdi(text[:400])])]
    )


def _rank_link(rank: int, address: Address) -> Any:
    return html.A(f"Rank {rank}", href=address.go(rank=rank, **UNZOOMED).url, className="link")


def _notes(found: RankAnswers) -> list[Any]:
    """Return what is missing or doubtful, each kind once with the ranks that have it."""
    notes = notes_of_ranks(found.read.summaries.values())
    rows = [f"{ranks_in_words(ranks)}: {text[:400]}" for text, ranks in notes]
    rows += [f"cannot be read: {reason[:400]}" for _, reason in found.read.unreadable]
    if not rows:
        return []
    shown = [html.Li(row) for row in rows[:MOST_NOTES]]
    more = len(rows) - MOST_NOTES
    shown += [html.Li(f"{format_count(more, 'more note')} (vramscope info)")] if more > 0 else []
    summary = html.Summary([html.Strong(f"{format_count(len(rows), 'note')} "), rows[0]])
    return [html.Details([summary, html.Ul(shown)], className="notes")]


def _quantity(address: Address) -> Quantity:
    return "reserved" if address.by == "reserved" else "allocated"


def _heat(found: RankAnswers, address: Address) -> Any:
    if not len(found.table.step):
        text = (
            f"No rank has a step{' yet' if found.fleet.running else ''}: the map begins with the first one."
        )
        return html.Section(html.P(text, className="dim nothing"), className="panel", id="rk-map")
    quantity = _quantity(address)
    figure = _figure(found, quantity, *_window(found, address))
    choice = segments("Peak", (
        (word.capitalize(), address.go(by="" if word == "allocated" else word).url, word == quantity)
        for word in QUANTITIES
    ))  # fmt: skip
    title = html.Div(
        [html.H3(f"Peak {quantity} of every rank in every step"),
         html.Span(_REST, className="dim", id="rk-readout", **{"data-rest": _REST})],
        className="titled",
    )  # fmt: skip
    sentence = f"The peak of {quantity} bytes of each rank in each step."
    picture = graph("rk-graph", figure, sentence, "rank-map")
    return panel(title, picture, beside=choice, kind="chart", label="Ranks and steps", id="rk-map")


Window = tuple[tuple[int, int], tuple[int, int]]


def _window(found: RankAnswers, address: Address) -> Window:
    """Return the ranks and the steps to show, first and end of each."""
    ranks = _edges(address.b0, address.b1, found.table.n_ranks)
    return ranks, _edges(address.t0, address.t1, found.table.end_step)


def _edges(start: int | None, end: int | None, n: int) -> tuple[int, int]:
    if start is None or end is None:
        return 0, n
    first = min(max(start, 0), max(n - 1, 0))
    return first, min(max(end, first + 1), n)


def _figure(found: RankAnswers, quantity: Quantity, ranks: tuple[int, int], steps: tuple[int, int]) -> Any:
    grid = heat_map(found.table, quantity, ranks, steps, rank_map.MOST_CELLS)
    view = [[edge - 0.5 for edge in window] for window in (steps, ranks)]
    return rank_map.figure(grid, view)


def _zoomed(window: dict[str, Any] | None, address: Address) -> Address:
    """Return *address* with the zoom that the browser sends; an axis that it does not name keeps its own."""
    known = {name: value for name, value in (window or {}).items() if name in UNZOOMED}
    return restore(address.stored | known)


def _register(app: Any, data: Data) -> None:
    _register_map(app, data)
    _register_following(app, data)
    in_browser(app, "rankMap", Input("rk-graph", "figure"), at_once=True)
    in_browser(app, "rankChosen", Input("rk-shown", "data"))


def _answers(data: Data, address: Address) -> RankAnswers:
    try:
        return queries_of(data).get(address.run)
    except VramscopeError as error:
        raise PreventUpdate from error


def _register_map(app: Any, data: Data) -> None:
    # Plotly also reports every change of size. Only a zoom reaches the server: a report without one would
    # take the place of the zoom before it, whose answer Dash then drops.
    in_browser(
        app,
        "rankZoom",
        Output("rk-window", "data"),
        Input("rk-graph", "relayoutData"),
        State("rk-window", "data"),
    )

    @app.callback(
        Output("rk-graph", "figure"),
        Input("rk-window", "data"), Input("rk-version", "data"), State("address", "data"),
        prevent_initial_call=True,
    )  # fmt: skip
    def zoom(window: dict[str, Any] | None, _: int | None, stored: Stored | None) -> Any:
        address = _zoomed(window, restore(stored))
        found = _answers(data, address)
        return _patched(found, _quantity(address), *_window(found, address))

    @app.callback(
        Output("rk-pair", "children"), Output("rk-shown", "data"),
        Input("rk-pick", "data"), Input("rk-rank", "value"), Input("rk-other", "value"),
        State("address", "data"), prevent_initial_call=True,
    )  # fmt: skip
    def choose(
        cell: dict[str, int] | None, rank: int | None, other: int | None, stored: Stored | None
    ) -> Any:
        address = restore(stored)
        found = _answers(data, address)
        known = found.read.summaries
        if ctx.triggered_id == "rk-pick":
            rank, other = _picked(found, _quantity(address), cell), None
        if rank is None or rank not in known or (other is not None and other not in known):
            raise PreventUpdate
        if ctx.triggered_id == "rk-rank" and other == rank:
            other = None
        beside = typical(found.fleet, rank) if other is None else other
        return pair(found, address, rank, beside), [rank, beside]


def _register_following(app: Any, data: Data) -> None:
    @app.callback(
        Output("rk-version", "data"), Output("rk-content", "children"), Output("rk-groups", "children"),
        Output("rk-standing", "children"), Output("rk-tick", "disabled"),
        Input("rk-tick", "n_intervals"), State("rk-version", "data"), State("address", "data"),
        prevent_initial_call=True,
    )  # fmt: skip
    def follow(_: int | None, version: int | None, stored: Stored | None) -> Any:
        address = restore(stored)
        found = _answers(data, address)
        if found.version == version:
            raise PreventUpdate
        dot = header.outcome_dot(_outcome(found))
        is_over = not found.fleet.running
        return found.version, _content(found, address), groups(found.fleet, address), dot, is_over


def _patched(found: RankAnswers, quantity: Quantity, ranks: tuple[int, int], steps: tuple[int, int]) -> Patch:
    grid = heat_map(found.table, quantity, ranks, steps, rank_map.MOST_CELLS)
    colors = rank_map.color_range(grid)
    unit, name = byte_unit(colors[1])
    patch = Patch()
    for key, value in rank_map.cells(grid, unit).items():
        patch["data"][0][key] = value
    patch["data"][0]["zmin"], patch["data"][0]["zmax"] = colors[0] / unit, colors[1] / unit
    patch["data"][0]["colorbar"]["ticksuffix"] = f" {name}"
    patch["layout"]["meta"] = rank_map.meta(grid, name)
    patch["layout"]["xaxis"]["dtick"] = rank_map.step_ticks(steps)["dtick"]
    patch["layout"]["yaxis"]["dtick"] = rank_map.ticks(ranks)["dtick"]
    return patch


def _picked(found: RankAnswers, quantity: Quantity, cell: dict[str, int] | None) -> int | None:
    """Return the rank of a clicked cell: of several ranks, the one that has the maximum of the cell."""
    if cell is None or not {"rank", "ranks", "step", "steps"} <= cell.keys():
        return None
    steps = found.table
    values = steps.allocated_bytes if quantity == "allocated" else steps.reserved_bytes
    is_inside = (
        (steps.rank >= cell["rank"])
        & (steps.rank < cell["rank"] + cell["ranks"])
        & (steps.step < cell["step"] + cell["steps"])
        & (steps.step + steps.n_steps > cell["step"])
    )
    at = np.flatnonzero(is_inside)
    return int(steps.rank[at[int(values[at].argmax())]]) if len(at) else None


def _behind(data: Data, view: View) -> Behind:
    whole = data.runs.whole_run(view.run_id)
    beside = 1 if whole is None else len(ranks_of(data.runs.path(whole[0])))
    seen = {recording.process.rank for recording in view.run.recordings}
    n_ranks = max(beside, len(seen), *(recording.process.world_size for recording in view.run.recordings))
    return Behind(n_ranks, is_offered=n_ranks > 1)


PAGE = Page(
    name="ranks", title="Ranks", order=75, path="/ranks", layout=_layout, register=_register,
    reads_events=False, behind=_behind,
)  # fmt: skip
