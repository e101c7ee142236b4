"""The icicle of the calls that lead to live bytes: at most MAX_NODES boxes, the rest is "other"."""

from typing import Any

from vramscope.analysis.lines import NO_STACK
from vramscope.analysis.tree import Tree, prune
from vramscope.units import format_bytes, format_share

from .drawing.names import place
from .drawing.theme import base_layout, byte_unit, esc, pack

MAX_NODES = 250  # measured: 300 nodes draw in 0.35 s, 1000 in 1.5 s, 3000 in 6 s
ROW_PX, MIN_ROWS, MAX_ROWS = 40, 4, 13

# One hue per function, pale enough for dark text in both themes (contrast ≥ 7 : 1 with INK).
_TINTS = ("#A9CCE3", "#F5CBA7", "#A9DFBF", "#E8C1DD", "#F7E7A1", "#B8D8E8", "#D5C4A1", "#C5CBE9")
_NEUTRAL = "#C9D0D8"
INK = "#10202C"

WORDS = {"(all)": "all live memory", "(no stack)": NO_STACK, "(framework only)": "libraries only",
         "(other)": "other, smaller"}  # fmt: skip


def figure(whole: Tree, root: int = 0) -> dict[str, Any]:
    """Return the icicle below the row *root* of *whole*; ``customdata`` is the target of a click on a box."""
    drawn = prune(whole, root, MAX_NODES)
    n_rows = range(len(drawn))
    share = min(1.0, max(_levels(drawn), 2) * ROW_PX / height_px(whole))
    whole_bytes = int(whole.total_bytes[0])
    unit, _ = byte_unit(whole_bytes)
    trace = {
        "type": "icicle", "uid": "icicle", "branchvalues": "total", "sort": True,
        "ids": [str(row) for row in n_rows],
        "parents": ["", *(str(parent) for parent in drawn.parent[1:].tolist())],
        "values": pack(drawn.total_bytes / unit),
        "labels": [_label(drawn, row, _room(drawn, row)) for row in n_rows],
        "text": [_size(int(n), whole_bytes, _room(drawn, row)) for row, n in enumerate(drawn.total_bytes)],
        "hovertext": [_whole_name(drawn, row, whole_bytes) for row in n_rows],
        "textinfo": "label+text", "hovertemplate": "%{hovertext}<extra></extra>",
        "customdata": [_target(drawn, row) for row in n_rows],
        "tiling": {"orientation": "v", "pad": 1}, "domain": {"y": [1 - share, 1]}, "leaf": {"opacity": 1},
        "maxdepth": max(_levels(drawn), 2), "pathbar": {"visible": False},
        "marker": {"colors": [_color(drawn, row) for row in n_rows], "line": {"width": 0}},
        "textposition": "middle left", "insidetextfont": {"size": 12, "color": INK},
    }  # fmt: skip
    layout = base_layout(hovermode="closest", uniformtext={"minsize": 11, "mode": "hide"})
    return {"data": [trace], "layout": layout}


def height_px(whole: Tree) -> int:
    """Return the height for the whole tree; it stays while the user zooms in, so that nothing below moves."""
    return ROW_PX * min(max(_levels(prune(whole, 0, MAX_NODES)), MIN_ROWS), MAX_ROWS)


def _levels(drawn: Tree) -> int:
    """Return the depth of the visible boxes: those of at least a hundredth of the width."""
    level = [1] * len(drawn)
    for row, parent in enumerate(drawn.parent.tolist()):
        level[row] = level[parent] + 1 if row else 1
    wide = (drawn.total_bytes * 100 >= drawn.total_bytes[0]).tolist()
    return min(max(deep for deep, seen in zip(level, wide, strict=True) if seen), MAX_ROWS)


def _room(drawn: Tree, row: int) -> int:
    """Return the number of letters that fit into a box, in a picture 1,000 pixels wide."""
    return int(drawn.total_bytes[row]) * 145 // max(int(drawn.total_bytes[0]), 1)


def _label(drawn: Tree, row: int, room: int) -> str:
    """Return the longest name that fits: Plotly would shrink the letters, or leave them out."""
    frame = drawn.frame(row)
    names = [f"{frame.function} {place(frame)}", f"{frame.function}:{frame.line}", frame.function]
    if not frame.file:
        names = [WORDS.get(frame.function, frame.function)]
    fitting = next((name for name in names if len(name) <= room), names[-1])
    return esc(fitting, room) if room >= 4 else ""


def _whole_name(drawn: Tree, row: int, whole: int) -> str:
    return f"{_label(drawn, row, 120)}<br>{_size(int(drawn.total_bytes[row]), whole, 120)}"


def _size(n_bytes: int, whole: int, room: int) -> str:
    size, share = format_bytes(n_bytes), format_share(n_bytes, max(whole, 1))
    return f"{size} · {share}" if room > 20 else size if room > 8 else ""


def _target(drawn: Tree, row: int) -> int:
    """Return the node of a box; that of the caller for "other", which then has space to show more."""
    node = int(drawn.node[row])
    return node if node >= 0 else int(drawn.node[drawn.parent[row]])


def _color(drawn: Tree, row: int) -> str:
    if not drawn.frame(row).file:
        return _NEUTRAL
    return _TINTS[(3 * int(drawn.function[row]) + int(drawn.file[row])) % len(_TINTS)]
