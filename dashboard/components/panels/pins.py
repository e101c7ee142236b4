"""The table of blocks that keep mostly free segments from being released, and who allocated them."""

from typing import Any

import numpy as np
from dash import html

from vramscope.analysis.folding import Folded
from vramscope.analysis.lines import NO_STACK
from vramscope.analysis.pins import pins_of
from vramscope.model.marks import Phase
from vramscope.model.snapshot import Snapshot
from vramscope.units import format_duration

from ...answers import folded
from ...data import Data, View
from .. import panel as panels
from .stack_table import BYTES, from_width, grid, marked_place, no_rows

MAX_PINS = 200

_COLUMNS = [
    {"field": "where", "headerName": "Allocated by", "flex": 4, "minWidth": 150, "cellRenderer": "VsWhere"},
    {"field": "kept", "headerName": "Keeps", "width": 112, "sort": "desc",
     "headerTooltip": "Free bytes of its segment, which cannot be released while this block is live"} | BYTES,
    {"field": "size", "headerName": "Block", "width": 108} | BYTES,
    {"field": "segment", "headerName": "Segment", "width": 112, "context": from_width(640)} | BYTES,
    {"field": "others", "headerName": "Beside", "width": 104, "type": "rightAligned",
     "headerTooltip": "Other blocks in use in the same segment", "context": from_width(760)},
    {"field": "age", "headerName": "Age", "width": 96, "type": "rightAligned"},
    {"field": "from", "headerName": "From", "flex": 1.4, "minWidth": 150, "cellClass": "dim",
     "context": from_width(900)},
]  # fmt: skip


def panel(data: Data, view: View, at: int, state: Snapshot) -> html.Section:
    """Return the table with its heading; a selected row opens the line of code."""
    heading, found = rows(data, view, at, state)
    shown = grid("fr-pins", found, _COLUMNS, no_rows("No block pins a mostly free segment."))
    shown.className = "table short"
    title = html.H3(heading, id="fr-pins-heading")
    return panels.panel(title, shown, label="What pins segments")


def rows(data: Data, view: View, at: int, state: Snapshot) -> tuple[str, list[dict[str, Any]]]:
    """Return heading and rows for the instant *at*, whose blocks are *state*."""
    found = data.derive(
        view, ("pins", at), lambda recording: pins_of(recording, state, data.ask(view, "lifetimes"))
    )
    if not len(found):
        return "Nothing pins a mostly free segment here", []
    n_segments = len(np.unique(found.segment))
    many = f"{n_segments:,} segments" if n_segments > 1 else "One segment"
    verb, blocks = "are" if n_segments > 1 else "is", "block" if len(found) == 1 else "blocks"
    heading = f"{many} more than half free {verb} kept by {len(found):,} {blocks}"
    return heading, [_pin(data, view, found, i) for i in range(min(len(found), MAX_PINS))]


def function_of(code: Folded, stack: int) -> str:
    """Return the function that allocated, or the library's, or words for a stack that is not known."""
    frame = code.frame(stack)
    return frame.function if frame else code.strings[int(code.via[stack])] or NO_STACK


def _pin(data: Data, view: View, found: Any, i: int) -> dict[str, Any]:
    code = folded(data, view)
    stack = int(found.stack_id[i])
    phase, step = Phase(int(found.phase[i])), int(found.step[i])
    number = int(view.recording.steps.index[step]) if step >= 0 else -1
    words = [f"step {number}" if step >= 0 else "", phase.name.lower() if phase != Phase.OTHER else ""]
    origin = " · ".join(word for word in words if word) or ("before" if found.alloc_event[i] < 0 else "")
    age = format_duration(int(found.age_ns[i])) if found.age_ns[i] else f"{int(found.age_events[i]):,} ev."
    return {
        "id": str(i), "where": function_of(code, stack)[:160],
        "place": marked_place(code, int(code.place[stack]))[:120], "kept": int(found.kept_bytes[i]),
        "size": int(found.block_size[i]), "segment": int(found.segment_size[i]),
        "others": int(found.n_blocks[i]) - 1, "age": age, "from": origin, "stack": stack,
    }  # fmt: skip
