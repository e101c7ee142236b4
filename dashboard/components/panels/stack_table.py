"""The table of live memory by line of code, and the stack and source of a line."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dash_ag_grid as dag
import numpy as np
from dash import Input, Output, State, dcc, html

from vramscope.analysis.folding import BytesByLine, Folded, user_files
from vramscope.analysis.lines import CALLERS_SHOWN, NO_STACK, Excerpt, excerpt, kept_excerpt
from vramscope.model.stacks import Frame, SourceFile, Stacks
from vramscope.package_data import rows as rows_of
from vramscope.units import format_bytes, format_count

from ...data import View
from ...figures.drawing.names import place
from ..scripts import in_browser

MAX_ROWS = 500
MAX_FRAMES = 80
MAX_SOURCE_BYTES = 2 << 20
NO_FRAME = "libraries only"


_FIGURES: dict[str, dict[str, Any]] = {
    kind: {"type": "rightAligned", "valueFormatter": {"function": f"vs{kind}(params.value)"}, "filter": False}
    for kind in ("Bytes", "Count")
}


def columns_of(table: str) -> list[dict[str, Any]]:
    """Return the columns of a *table*, which ``columns.tsv`` has."""
    return [
        {"field": name, "headerName": title, **json.loads(more)}
        | _FIGURES.get(kind, {})
        | ({"context": {"leastTablePx": int(width)}} if width else {})
        | ({"headerTooltip": tooltip} if tooltip else {})
        for name, title, kind, width, more, tooltip in rows_of(__file__, "columns.tsv", table)
    ]


def no_rows(text: str, loading: str = "Loading …") -> dict[str, str]:
    """Return the grid's texts for a table without rows, and until it has its first answer."""
    return {"noRowsToShow": text, "noMatchingRows": text, "loadingOoo": loading}


def layout(prefix: str, rows: list[dict[str, Any]], *, has_holders: bool) -> html.Div:
    """Return the table; the inspector shows the line of the selected row.

    Without a search for holders the other columns have the room of theirs.
    """
    columns = [each for each in columns_of("lines") if has_holders or each["field"] != "holder"]
    more = {"suppressCellFocus": False, "tooltipShowDelay": 300}
    shown = grid(f"{prefix}-table", rows, columns, no_rows("No line matches."), **more)
    return html.Div(shown, className="table-frame")


def grid(
    name: str, rows: Any, columns: list[dict[str, Any]], texts: dict[str, str], **more: Any
) -> dag.AgGrid:
    """Return a grid whose rows can be selected; *texts* are those of :func:`no_rows`, *more* its options."""
    options = {
        "rowHeight": 34, "headerHeight": 34, "animateRows": False, "enableCellTextSelection": True,
        "rowSelection": {"mode": "singleRow", "checkboxes": False, "enableClickSelection": True},
        "localeText": texts, "suppressColumnMoveAnimation": True,  # columns would slide to their places
        "rowBuffer": 2,  # rows out of sight: ten, as usual, are more than a short table shows
    }  # fmt: skip
    usual = {"sortable": True, "resizable": True, "suppressHeaderMenuButton": True}
    return dag.AgGrid(
        id=name, rowData=rows, columnDefs=columns, defaultColDef=usual, dashGridOptions=options | more,
        getRowId="params.data.id", className="table", dangerously_allow_code=False,
        eventListeners={"gridSizeChanged": ["vsFitColumns(params.api)"]},  # hides columns where it is narrow
    )  # fmt: skip


def search_box(prefix: str) -> Any:
    """Return the box that filters the table in the browser; the key ``/`` moves the focus to it."""
    box = dcc.Input(
        id=f"{prefix}-search", type="search", placeholder="Find a function or file", className="search"
    )
    return html.Label([html.Span("Find in the table", className="unseen"), box])


def register_rows(app: Any, table: str) -> None:
    """Register that the inspector shows the line or block of the row that is selected."""
    in_browser(app, "rowPicked", Input(table, "selectedRows"))


def register(app: Any, prefix: str) -> None:
    """Register the callbacks of one table."""
    register_rows(app, f"{prefix}-table")
    in_browser(
        app,
        "search",
        Output(f"{prefix}-table", "dashGridOptions"),
        Input(f"{prefix}-search", "value"),
        State(f"{prefix}-table", "dashGridOptions"),
    )


def rows(folded: Folded, held: BytesByLine, kept_by: Mapping[Any, str] | None = None) -> list[dict[str, Any]]:
    """Return up to MAX_ROWS rows, largest first; beyond, the last row sums up the remaining lines."""
    whole = max(held.total_bytes, 1)
    shown = len(held.n_bytes) if len(held.n_bytes) <= MAX_ROWS else MAX_ROWS - 1
    found = [_row(folded, held, i, whole) for i in range(shown)]
    for row, node, via in zip(found, held.folded_id.tolist(), held.via.tolist(), strict=False):
        line = folded.stacks.frames(node)[: 1 + CALLERS_SHOWN], folded.strings[via]
        row["holder"] = (kept_by or {}).get(line, "")
    if shown < len(held.n_bytes):
        rest, number = int(held.n_bytes[shown:].sum()), int(held.count[shown:].sum())
        name = f"other ({len(held.n_bytes) - shown:,} more lines)"
        found.append({"id": "other", "where": name, "bytes": rest, "share": rest / whole, "count": number})
    return found


def _row(folded: Folded, held: BytesByLine, i: int, whole: int) -> dict[str, Any]:
    node, stack = int(held.folded_id[i]), int(held.example[i])
    frame = folded.stacks.frame(node) if node else None
    n_bytes = int(held.n_bytes[i])
    return {
        "id": f"{node}-{int(held.via[i])}",
        "where": _name(frame, stack),
        "place": marked_place(folded, node),
        "file": frame.file[:400] if frame else "",
        "caller": _caller(folded, node),
        "via": folded.strings[int(held.via[i])][:120],
        "bytes": n_bytes,
        "share": n_bytes / whole,
        "count": int(held.count[i]),
        "stack": stack,
    }


def marked_place(folded: Folded, node: int) -> str:
    """Return ``train.py:31``; ``loader.py:9 (library)`` where no frame of the stack is the user's."""
    if not node:
        return ""
    return place(folded.stacks.frame(node)) + (" (library)" if folded.is_library(node) else "")


def _name(frame: Frame | None, stack: int) -> str:
    if frame is not None:
        return frame.function[:200]
    return NO_FRAME if stack else NO_STACK


def _caller(folded: Folded, node: int) -> str:
    parent = int(folded.stacks.parent[node]) if node else 0
    return place(folded.stacks.frame(parent)) if parent else ""


def detail(view: View, stack: Any) -> Any:
    """Return the frames of one stack, outermost last; those of libraries are folded."""
    stacks = view.recording.stacks
    if not isinstance(stack, int) or not 0 < stack < len(stacks):
        return html.P("No stack recorded: these bytes were allocated before the recording began, or "
                      "outside of Python.", className="dim hint")  # fmt: skip
    frames = stacks.frames(stack)
    mine = user_files(stacks)
    own = [frame for frame in frames if frame.file in mine]
    first = own[0] if own else frames[0]
    return [
        html.H4([html.Bdi(first.function[:200]), " ", html.Span(place(first), className="dim")]),
        code(first, view),
        html.Ol(_frame_items(frames[:MAX_FRAMES], mine), className="frames"),
        html.P(f"{len(frames) - MAX_FRAMES} outer frames left out", className="dim")
        if len(frames) > MAX_FRAMES
        else html.Span(),
    ]


def source(frame: Frame, recorded_ns: int = 0) -> Excerpt | None:
    """Return the source lines around a frame's line; None where the file is not on this machine.

    A recording may name any file, so only Python sources are opened: a viewer of code is expected to show
    their text, and no other file of the disk is read.

    *frame* has an absolute path and a line from 1 on; *recorded_ns* is as in ``excerpt``.
    """
    path = Path(frame.file)
    if not re.search(r"\.py$", frame.file) or not path.is_absolute() or frame.line < 1:
        return None
    try:
        if not path.is_file() or path.resolve().suffix != ".py" or path.stat().st_size > MAX_SOURCE_BYTES:
            return None
        text = path.read_text(encoding="utf-8", errors="replace")
        return excerpt(text, frame, modified_ns=path.stat().st_mtime_ns, recorded_ns=recorded_ns)
    except (OSError, ValueError):
        return None


def code(frame: Frame, view: View | None = None) -> Any:
    """Return the line between its neighbors, where the recording or this machine has it.

    A file that changed after the recording began is shown with a warning. The lines that the recording keeps
    come first, because they are those that ran.
    """
    began = 0 if view is None else view.run.started_ns
    file = SourceFile() if view is None else view.recording.sources.get(frame.file, SourceFile())
    kept = kept_excerpt(file.lines, frame, modified_ns=file.modified_ns, recorded_ns=began)
    found = kept if kept.lines else source(frame, began)
    if found is None:
        return html.P("The source is neither in the recording nor on this machine.", className="dim hint")
    shown = html.Pre(
        [html.Div([html.Span(f"{line.number:>4} ", className="number"), line.text or " "],
                  className="line here" if line.is_frame else "line") for line in found.lines],
        className="code", tabIndex=0,
    )  # fmt: skip
    if not found.doubt:
        return shown
    return html.Div([shown, html.P(f"Careful: {found.doubt}.", className="dim hint")])


def _frame_items(frames: tuple[Frame, ...], mine: frozenset[str]) -> list[Any]:
    items: list[Any] = []
    run: list[Frame] = []
    for frame in (*frames, None):
        if frame is not None and frame.file not in mine:
            run.append(frame)
            continue
        if run:
            items.append(_folded_item(run))
            run = []
        if frame is not None:
            items.append(_item(frame))
    return items


def _item(frame: Frame) -> html.Li:
    return html.Li(
        [html.Bdi(frame.function[:300], className="function"), html.Bdi(place(frame), className="dim")],
        title=frame.file[:400],
    )


def _folded_item(run: list[Frame]) -> html.Li:
    summary = html.Summary(f"{format_count(len(run), 'frame')} of libraries and Python")
    return html.Li(html.Details([summary, html.Ol([_item(frame) for frame in run])]), className="framework")


def summary(held: BytesByLine) -> str:
    """Return a summary such as ``3.21 GiB in 812 blocks from 64 lines``."""
    blocks = format_count(int(held.count.sum()), "block")
    lines = format_count(len(held.n_bytes), "line")
    return f"{format_bytes(held.total_bytes)} in {blocks} from {lines}"


def to_code(shown: Any, stack: int, name: str = "") -> Any:
    """Return *shown* as a button that shows *stack* in the inspector; unchanged where *stack* is 0."""
    if stack <= 0:
        return shown
    title = f"Show the line of code{f' of {name}' if name else ''}"
    return html.Button(
        shown, type="button", className="to-code", title=title, **{"data-inspect": f"l{stack}"}
    )


def stack_of(stacks: Stacks, file: str, line: int) -> int:
    """Return a stack whose innermost frame is that line; 0 where none is."""
    at = np.flatnonzero(stacks.line == line)
    names = np.array([stacks.strings[i] == file for i in stacks.file[at].tolist()], "?")
    found = at[names] if len(at) else at
    return int(found[0]) if len(found) else 0
