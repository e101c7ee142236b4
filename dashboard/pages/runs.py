"""The page "Runs": all runs with their peaks, verdict and state; sorted, searched and compared."""

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, TypedDict
from zlib import crc32

from dash import Input, Output, State, dcc, html
from dash.exceptions import PreventUpdate

from vramscope.model.recording import Outcome
from vramscope.units import format_duration

from ..address import Address
from ..components import header, states
from ..components.definitions import DEFINITION
from ..components.scripts import in_browser
from ..data import Data
from ..figures.sparkline import drawn
from ..queries.run_summaries import RunSummary, summaries_of
from ..runs import MOST_OPENED_WHOLE
from . import Context, Page

MAX_RUNS = 5000
MOST_TAGS = 12
SEVERE = "out of memory"
"""The verdict on a run that ran out of memory, or would, has these words."""
_TERMS = ("allocated", "reserved", "step")


class Shown(TypedDict, total=False):
    """The state of the list that a browser has."""

    turn: int
    order: int


def _layout(context: Context) -> Any:
    data = context.data
    folder = Path(data.runs.shown_root)
    terms = {f"data-{name}": DEFINITION[name] for name in _TERMS}
    # With the rows in the layout nobody waits for a second request.
    sent, place = _sent(data, None)
    return [
        html.Div(
            [html.H1("Runs"), html.P(html.Bdi(folder.resolve().name or str(folder)), className="facts")],
            className="page-title",
        ),
        html.Div(place, id="runs-place"),
        # The browser makes the table itself: Dash takes seconds to place the components of 1,000 rows.
        html.Div(id="runs-list", className="runs-list", **terms),
        dcc.Store(id="runs-first", data=sent),
        dcc.Store(id="runs-rows"),
        dcc.Store(id="runs-shown", data={"turn": sent["turn"], "order": sent["order"]}),
    ]


def _register(app: Any, data: Data) -> None:
    @app.callback(
        Output("runs-rows", "data"), Output("runs-place", "children"),
        Input("tick", "n_intervals"), State("runs-shown", "data"),
        prevent_initial_call=True,  # the layout has the first rows
    )  # fmt: skip
    def show(_: int | None, shown: Shown | None) -> tuple[Any, Any]:
        return _sent(data, shown)

    in_browser(app, "runs", Input("runs-first", "data"), at_once=True)
    in_browser(app, "runs", Output("runs-shown", "data"), Input("runs-rows", "data"))


def _sent(data: Data, shown: Shown | None) -> tuple[dict[str, Any], Any]:
    """Return what a browser that has *shown* lacks, and what stands above the table."""
    names = list(data.runs.paths())[:MAX_RUNS]
    summaries = summaries_of(data)
    summaries.watch(names)
    turn, changed = summaries.since((shown or {}).get("turn", -1))
    order = crc32(" ".join(names).encode())
    if shown and (turn, order) == (shown.get("turn"), shown.get("order")):
        raise PreventUpdate
    is_known = shown is not None and order == shown.get("order")
    # One text, which Dash carries as it is: objects of 500 rows it encodes and compares value by value.
    rows = ",".join(
        f"{json.dumps(name)}:{_encoded(name, changed[name])}" for name in names if name in changed
    )
    sent = {"turn": turn, "order": order, "rows": f"{{{rows}}}"}
    if not is_known:
        paths, root = data.runs.paths(), data.runs.root
        sent |= {"names": names, "folders": [_folder(paths[n], root) if n in paths else "" for n in names]}
    return sent, None if names else states.no_runs(data.runs.shown_root)


@lru_cache(MAX_RUNS)
def _encoded(name: str, summary: RunSummary) -> str:
    return json.dumps(row(name, summary), separators=(",", ":"))


def row(name: str, summary: RunSummary) -> dict[str, Any]:
    """Return the row of a run, as the script of the page reads it; *name* is the id of the run."""
    known: dict[str, Any] = {"name": summary.name[:200]}
    if summary.error:
        return known | {"error": summary.error[:400], "state": "unreadable"}
    source = header.SOURCE.get(summary.source, summary.source)
    outcome = header.shown_outcome(summary.outcome, summary.source)
    return known | {
        "url": Address(_first_page(summary), run=name).url,
        "peak": Address("/peak", run=name).url,
        "source": source,
        "about": DEFINITION.get(source, f"Recorded by {source}."),
        "tags": summary.tags.split()[:MOST_TAGS],
        "devices": summary.n_devices,
        "runs": summary.n_runs,
        "is_least": summary.is_least,
        "allocated_bytes": summary.peak_allocated_bytes,
        "reserved_bytes": summary.peak_reserved_bytes,
        "steps": summary.n_steps,
        "step_time": format_duration(round(1e9 / summary.steps_per_s)) if summary.steps_per_s else "",
        "started_s": summary.started_ns // 10**9,
        "when": header.when(summary.started_ns),
        "verdict": summary.verdict,
        "state": "stalled" if summary.stalled_s else outcome.word,
        "stalled_s": summary.stalled_s,
        "is_live": summary.outcome is Outcome.RUNNING,
        "drawn": drawn(summary.allocated, summary.reserved),
    }


@lru_cache(MAX_RUNS)
def _folder(path: Path, root: Path) -> str:
    """Return the folder of a run below the one that is served; '' for that folder itself."""
    try:
        parent = path.parent.relative_to(root).as_posix()
    except ValueError:
        return ""
    return "" if parent == "." else parent[:200]


def _first_page(summary: RunSummary) -> str:
    """Return the page that a run opens with: many or odd ranks are compared, a dead run has its own home."""
    if summary.n_devices > MOST_OPENED_WHOLE or re.match(r"rank \d|[\d,]+ ranks ", summary.verdict):
        return "/ranks"
    has_ended_so = summary.outcome in (Outcome.FAILED, Outcome.DIED)
    return "/oom" if has_ended_so and SEVERE in summary.verdict else "/overview"


PAGE = Page(name="runs", title="Runs", order=0, path="/", layout=_layout, register=_register, about_run=False)
