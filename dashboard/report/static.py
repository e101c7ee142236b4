"""Dash components as plain HTML, so that a report shows what the page shows, without a server."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import plotly.utils
from dash.development.base_component import Component

from vramscope.model.recording import Run
from vramscope.units import format_bytes, format_share

from ..components.graph import DRAWN
from ..data import Data
from ..figures.drawing.theme import in_unit
from ..runs import Follower, Library
from ..server.plain import text_of

MAX_ROWS = 100
_KEPT = ("title", "style", "role", "src", "alt", "colSpan", "scope", "open")
_LEFT_OUT = ("Store", "Location", "Interval", "Input", "Checklist", "Button", "Canvas")
_EMPTY = ("img", "br", "hr")


class Printer:
    """Converts components into HTML and collects the figures to draw in it."""

    def __init__(self) -> None:
        self.figures: list[dict[str, Any]] = []

    def html(self, part: Any) -> str:
        """Return the HTML of a component, of several, or of a text."""
        if part is None or isinstance(part, bool):
            return ""
        if isinstance(part, (list, tuple)):
            return "".join(self.html(each) for each in part)
        if not isinstance(part, Component):
            return escape(str(part))
        return self._component(part)

    def _component(self, part: Component) -> str:
        kind = part._type
        if kind == "Button" and getattr(part, "className", "") == "to-code":
            return self.html(part.children)  # the code that it opens is not in the report, its text is
        if kind in _LEFT_OUT:
            return ""
        plotted = getattr(part, DRAWN, None)
        if kind == "Graph" or plotted:
            self.figures.append(in_unit(json.loads(plotted)) if plotted else part.figure)
            return f'<div class="drawing" id="figure{len(self.figures) - 1}"></div>'
        if kind == "AgGrid":
            return _table(part.rowData, part.columnDefs)
        if kind == "Tooltip":
            return f'<span title="{escape(str(part.label))}">{self.html(part.children)}</span>'
        tag = "span" if kind == "A" else kind.lower()
        inside = self.html(getattr(part, "children", None))
        return f"<{tag}{_attributes(part)}>" + ("" if tag in _EMPTY else f"{inside}</{tag}>")


def _attributes(part: Component) -> str:
    props = part.to_plotly_json()["props"]
    found = {"class": props.get("className"), **{name: props.get(name) for name in _KEPT}}
    found |= {name: value for name, value in props.items() if name.startswith("aria-")}
    texts = {name: text_of(value) for name, value in found.items()}
    return "".join(f' {name}="{escape(text)}"' for name, text in texts.items() if text is not None)


def _table(rows: list[dict[str, Any]] | None, columns: list[dict[str, Any]]) -> str:
    rows = rows or []
    head = "".join(f"<th{_right(column)}>{escape(column['headerName'])}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td{_right(c)}>{_cell(row, c)}</td>" for c in columns) + "</tr>"
        for row in rows[:MAX_ROWS]
    )
    more = f"<p class='dim nothing'>{len(rows) - MAX_ROWS:,} more rows</p>" if len(rows) > MAX_ROWS else ""
    return f'<table class="diff"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}'


def _right(column: dict[str, Any]) -> str:
    return ' class="number"' if column.get("type") == "rightAligned" else ""


def _cell(row: dict[str, Any], column: dict[str, Any]) -> str:
    value = row.get(column["field"])
    if value is None:
        return ""
    if "vsBytes" in json.dumps(column):
        return escape(format_bytes(value))
    if column.get("cellRenderer") == "VsShare":
        return format_share(value, 1)
    if column.get("cellRenderer") == "VsWhere":
        place = escape(str(row.get("place", "")))
        return f'<bdi class="function">{escape(str(value))}</bdi> <bdi class="place">{place}</bdi>'
    return escape(f"{value:,}" if isinstance(value, int) else str(value))


def script_json(data: Any) -> str:
    """Return JSON for use inside a script element: without ``<``, nothing can end the element."""
    return json.dumps(data, cls=plotly.utils.PlotlyJSONEncoder).replace("<", "\\u003c")


@contextmanager
def in_memory(*runs: Run) -> Iterator[tuple[Data, list[str]]]:
    """Yield the door to *runs*, as pages have it, and their ids in the same order."""
    with TemporaryDirectory(prefix="vramscope-") as folder:
        # A page asks whether the files of its run still exist.
        places = {Path(folder) / f"run{number}": run for number, run in enumerate(runs)}
        for place in places:
            place.mkdir()
        data = Data(Path(folder), _Opened(places))
        yield data, [*data.runs.paths()]


class _Opened(Library):
    """A source of runs that are read already."""

    def __init__(self, runs: dict[Path, Run]) -> None:
        self._runs = runs

    def discover(self, root: Path) -> Sequence[Path]:  # noqa: ARG002
        """Return the place of each run."""
        return [*self._runs]

    def follow(self, path: Path, *_: object) -> Follower:
        """Return the run at *path*."""
        return _Still(self._runs[path])


class _Still(Follower):
    """A run that does not grow while it is shown."""

    def __init__(self, run: Run) -> None:
        self._source = run
