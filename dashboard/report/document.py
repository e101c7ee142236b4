"""A run as one HTML file that shows a recording without a server, offline, for years.

The file contains plotly.js, compressed; the browser unpacks it. Its content is made of the pages' components.
"""

import base64
import gzip
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from vramscope.model.recording import Recording, Run

from ..address import Address
from ..components import header, legend
from ..components.graph import graph
from ..components.panels import breakdown, live_set
from ..data import Data, View
from ..figures import composition, icicle, timeline
from ..figures.drawing.series import TIME
from ..figures.drawing.theme import CONFIG
from ..pages import Context
from ..pages.overview import PAGE as OVERVIEW
from ..pages.phases import PAGE as PHASES
from ..queries.answers import clamp, series_of, tree_at
from .static import Printer, script_json

MOST_RECORDINGS = 8
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' blob:; style-src 'unsafe-inline'; img-src data: blob:; "
    "font-src data:"
)
_LOADER = """
(async () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), c => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const config = JSON.parse(document.getElementById("config").textContent);
  figures.forEach((figure, i) => Plotly.newPlot(`figure${i}`, figure.data, figure.layout, config));
  document.documentElement.dataset.ready = "yes";
})();
"""
_STYLE = """
.report { max-width: 1180px; margin: 0 auto; padding: 2rem 1.4rem 4rem; }
.report > * { margin-bottom: 1.5rem !important; }
.report td { white-space: nowrap; }
.report .link, .report .only-live { display: none; }
.report h2.recording { font-size: 1.05rem; margin: 2.4rem 0 1rem; }
.drawing { height: 100%; }
.report .table-and-detail { grid-template-columns: minmax(0, 1fr); }
.report .segments, .report .choice-of, .report nav { display: none; }
.report .place { color: var(--ink-3); }
"""


def document(run: Run) -> str:
    """Return the HTML of a report of *run*."""
    printer = Printer()
    data = Data(Path(run.path or run.name), _SingleRun(run))
    shown = run.recordings[:MOST_RECORDINGS]
    parts = [_recording(data, run, recording, printer) for recording in shown]
    left = len(run.recordings) - len(shown)
    if left:
        parts.append(f"<p class='notes'>{left} more recordings are left out of this file.</p>")
    library = base64.b64encode(gzip.compress(_plotly(), 9, mtime=0)).decode()
    figures = [_alone(figure) for figure in printer.figures]
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(run.name)} · vramscope</title><style>{_css()}{_STYLE}</style></head>",
            f'<body><main class="report" id="main">{"".join(parts)}</main>',
            f'<script type="text/plain" id="plotly">{library}</script>',
            f'<script type="application/json" id="figures">{script_json(figures)}</script>',
            f'<script type="application/json" id="config">{script_json(CONFIG)}</script>',
            f"<script>{_LOADER}</script></body></html>",
        )
    )


class _SingleRun:
    """A source of runs with only one run, which is read already."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def discover(self, root: Path) -> list[Path]:
        """Return the path of the run itself."""
        return [root]

    def follow(self, _: Path) -> "_SingleRun":
        """Return the run, which does not grow for a report."""
        return self

    def refresh(self) -> bool:
        """Return that there are no new events."""
        return False


def _plotly() -> bytes:
    return files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()


def _css() -> str:
    return files(__package__.rpartition(".")[0]).joinpath("assets", "style.css").read_text(encoding="utf-8")


def _alone(figure: dict[str, Any]) -> dict[str, Any]:
    """Return *figure* with Plotly's own hover, as a report lacks the scripts of the pages."""
    kinds = {trace["type"] for trace in figure["data"]}
    return figure if "icicle" in kinds else {**figure, "layout": {**figure["layout"], "hovermode": "x"}}


def _recording(data: Data, run: Run, recording: Recording, printer: Printer) -> str:
    name = next(iter(data.paths()))
    rank, device = recording.process.rank, recording.device.index
    address = Address(OVERVIEW.path, run=name, rank=rank, device=device)
    view = View(name, 0, run, recording)
    parts: list[Any] = [header.run_header(view, address)]
    if len(recording.trace) or len(recording.initial.blocks):
        parts += _content(data, view, address)
    parts.append(header.notes(view))
    return printer.html(parts)


def _content(data: Data, view: View, address: Address) -> list[Any]:
    from ..pages.overview import opening

    at = clamp(data, view, None)
    series = series_of(data, view, TIME)
    whole = timeline.window(series, None, None)
    chart = timeline.figure(series, whole, legend.usual(series), at)
    parts = [
        opening(data, view),
        _panel(
            "Memory over time",
            graph("rp-time", chart, "Memory over time.", "timeline"),
            legend.phases(series),
        ),
        breakdown.layout(data, view, at),
    ]
    tree = tree_at(data, view, at)
    if len(view.recording.trace) and int(tree.total_bytes[0]):
        picture = graph(
            "rp-tree", icicle.figure(tree), "Live memory by call.", "icicle", icicle.height_px(tree)
        )
        parts.append(_panel("Live at the peak, by call", picture))
    parts.append(live_set.layout("rp", data, view, at, address))
    if len(view.recording.steps):
        parts += PHASES.layout(Context(data, address))
    found = data.ask(view, "fragmentation")
    if int(found.parts.reserved_bytes.max(initial=0)):
        drawn = composition.figure(series, found.parts, whole, at)
        picture = graph("rp-parts", drawn, "Reserved memory over time.", "timeline composition")
        parts.append(_panel("What the reserved memory consisted of", picture))
    return parts


def _panel(title: str, *content: Any) -> Any:
    from dash import html

    head = html.Div(html.H3(title), className="panel-bar")
    return html.Section([head, *content], className="panel chart", **{"aria-label": title})
