"""The page "Runs": the list of all runs with their peaks, verdict and state."""

from pathlib import Path
from typing import Any

from dash import Input, Output, State, dcc, html
from dash.exceptions import PreventUpdate

from vramscope.model.recording import Outcome
from vramscope.units import format_bytes

from ..address import Address
from ..components import header, states
from ..components.definitions import term
from ..data import MOST_OPENED_WHOLE, Data
from ..figures.sparkline import image
from ..queries.run_summaries import RunSummaries, RunSummary
from . import Context, Page

MAX_RUNS = 300


def _layout(context: Context) -> Any:
    folder = Path(context.data.shown_root)
    return [
        html.Div(
            [html.H1("Runs"), html.P(html.Bdi(folder.resolve().name or str(folder)), className="facts")],
            className="page-title",
        ),
        html.Div(_skeleton(len(context.data.paths())), id="runs-list"),
        dcc.Store(id="runs-shown"),
    ]


def _register(app: Any, data: Data) -> None:
    summaries = RunSummaries(data)

    @app.callback(
        Output("runs-list", "children"), Output("runs-shown", "data"),
        Input("tick", "n_intervals"), State("runs-shown", "data"),
    )  # fmt: skip
    def show(_: int | None, shown: list[Any] | None) -> tuple[Any, Any]:
        names = list(data.paths())[:MAX_RUNS]
        known = [(name, summaries.get(name)) for name in names]
        now = [[name, _print(summary)] for name, summary in known]
        if now == shown:
            raise PreventUpdate
        return listing(known, data.shown_root, len(data.paths())), now


def _print(summary: RunSummary | None) -> str:
    """Return a text that changes when the row of the run would look different."""
    if summary is None:
        return ""
    figures = (summary.n_events, summary.n_steps, summary.peak_reserved_bytes)
    return f"{summary.outcome.value} {summary.stalled_s} {summary.verdict} {figures} {summary.error}"


def listing(known: list[tuple[str, RunSummary | None]], folder: str, n_runs: int) -> Any:
    """Return the table of runs.

    Parameters
    ----------
    known
        Id and summary of each run, newest first; None where the summary is not made yet.
    folder
        The folder that is served.
    n_runs
        Number of runs in the folder; those beyond *known* are not listed.
    """
    if not known:
        return states.no_runs(folder)
    head = html.Tr(
        [
            html.Th("Run", scope="col"),
            html.Th("Memory over the run", scope="col"),
            html.Th(term("allocated", "Peak allocated"), scope="col", className="number"),
            html.Th(term("reserved", "Peak reserved"), scope="col", className="number"),
            html.Th(term("step", "Steps"), scope="col", className="number"),
            html.Th("When", scope="col"),
            html.Th("Verdict", scope="col"),
            html.Th("State", scope="col"),
        ]
    )
    body = [_row(name, summary) for name, summary in known]
    table = html.Table([html.Thead(head), html.Tbody(body)], className="runs")
    if n_runs > len(known):
        return [table, html.P(f"The newest {len(known)} of {n_runs} are listed.", className="dim")]
    return table


def _row(name: str, summary: RunSummary | None) -> html.Tr:
    if summary is None:
        word = name.rsplit("-", 1)[0]
        return html.Tr(
            [html.Td(html.Bdi(word)), html.Td(html.Div(className="shimmer"), colSpan=7)], className="waiting"
        )
    if summary.error:
        return html.Tr(
            [html.Td(html.Bdi(summary.name)), html.Td(summary.error[:400], colSpan=6, className="dim"),
             html.Td(html.Span("cannot be read", className="outcome outcome-failed"))],
            className="unreadable",
        )  # fmt: skip
    link = dcc.Link(
        html.Bdi(summary.name[:200]), href=Address(_first_page(summary), run=name).url, className="run-link"
    )
    several = f"{summary.n_recordings} devices" if summary.n_recordings > 1 else ""
    return html.Tr(
        [
            html.Td(
                html.Div(
                    [link, header.source_badge(summary.source), html.Span(several, className="dim")],
                    className="run-cell",
                )
            ),
            html.Td(_spark(summary)),
            html.Td(
                _to_peak(name, summary.peak_allocated_bytes),
                className="number strong",
                title=_bytes(summary.peak_allocated_bytes),
            ),
            html.Td(
                _peak(summary.peak_reserved_bytes),
                className="number",
                title=_bytes(summary.peak_reserved_bytes),
            ),
            html.Td(f"{summary.n_steps:,}" if summary.n_steps else "–", className="number"),
            html.Td(header.when(summary.started_ns) or "–", className="dim"),
            html.Td(html.Span(summary.verdict or "–", className=_tone(summary.verdict)), className="judged"),
            html.Td(header.outcome_dot(summary.outcome, summary.stalled_s)),
        ],
        className="live" if summary.outcome is Outcome.RUNNING else "",
    )


def _first_page(summary: RunSummary) -> str:
    """Return the page that a run opens with: of very many ranks the one that compares them."""
    return "/ranks" if summary.n_recordings > MOST_OPENED_WHOLE else "/overview"


def _peak(n_bytes: int) -> str:
    """Return the bytes; a dash where unknown: nvidia-smi lacks torch's bytes, some profiles lack segments."""
    return format_bytes(n_bytes) if n_bytes else "–"


def _bytes(n_bytes: int) -> str:
    return f"{n_bytes:,} bytes" if n_bytes else ""


def _to_peak(name: str, n_bytes: int) -> Any:
    """Return the peak as a link to the page that shows its holders."""
    if not n_bytes:
        return _peak(n_bytes)
    to = Address("/peak", run=name).url
    return dcc.Link(_peak(n_bytes), href=to, className="plain-link")


def _tone(verdict: str) -> str:
    grave = verdict.startswith("ran out")
    return "verdict-bad" if grave else "verdict-warn" if verdict.startswith("leaks") else "dim"


def _spark(summary: RunSummary) -> Any:
    if not len(summary.allocated):
        return html.Span("no events", className="dim")
    text = f"Peak {format_bytes(summary.peak_allocated_bytes)} allocated"
    return html.Img(src=image(summary.allocated, summary.reserved), className="spark", alt=text)


def _skeleton(n_runs: int) -> Any:
    return [html.Div(className="shimmer tall") for _ in range(min(max(n_runs, 1), 12))]


PAGE = Page(name="runs", title="Runs", order=0, path="/", layout=_layout, register=_register, about_run=False)
