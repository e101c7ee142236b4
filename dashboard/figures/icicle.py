"""The icicle of the calls that lead to live bytes: at most MAX_NODES boxes, the rest is "other"."""

from typing import Any

import numpy as np

from vramscope.analysis.compare.call_trees import TreeDifference
from vramscope.analysis.lines import NO_STACK
from vramscope.analysis.tree import Tree, prune
from vramscope.units import format_bytes, format_share

from .drawing.names import place
from .drawing.theme import base_layout, byte_unit, esc, pack

MAX_NODES = 250  # measured: 300 nodes draw in 0.35 s, 1000 in 1.5 s, 3000 in 6 s
ROW_PX, MIN_ROWS, MAX_ROWS = 40, 4, 13
LEAST_LEVELS = 2  # of calls below the callers: the root of the picture and what it calls

# One hue per function, pale enough for dark text in both themes (contrast ≥ 7 : 1 with INK).
_TINTS = ("#A9CCE3", "#F5CBA7", "#A9DFBF", "#E8C1DD", "#F7E7A1", "#B8D8E8", "#D5C4A1", "#C5CBE9")
_NEUTRAL = "#C9D0D8"
INK = "#10202C"

WORDS = {"(all)": "all live memory", "(no stack)": NO_STACK, "(framework only)": "libraries only",
         "(other)": "other, smaller"}  # fmt: skip


def figure(whole: Tree, root: int = 0) -> dict[str, Any]:
    """Return the icicle of the row *root* of *whole*, below its callers as boxes of the whole width.

    ``customdata`` is the target of a click on a box; ``ids`` count the boxes from the outermost caller on,
    and ``meta`` is the number of callers.
    """
    drawn = prune(whole, root, MAX_NODES)
    callers = _callers(whole, root, _rows(whole) - LEAST_LEVELS)
    n_above = len(callers)
    n_rows = range(len(drawn))
    levels = min(max(_levels(drawn), 2), _rows(whole) - n_above)
    share = min(1.0, (n_above + levels) * ROW_PX / height_px(whole))
    whole_bytes = int(whole.total_bytes[0])
    unit, _ = byte_unit(whole_bytes)
    # A caller holds more than what is shown of it; its box is as wide as the picture all the same.
    shown_bytes = np.concatenate([np.repeat(drawn.total_bytes[:1], n_above), drawn.total_bytes])
    boxes = [*((whole, row, 145) for row in callers), *((drawn, row, _room(drawn, row)) for row in n_rows)]
    trace = {
        "type": "icicle", "uid": "icicle", "branchvalues": "total", "sort": True,
        "ids": [str(row) for row in range(len(boxes))],
        "parents": ["", *map(str, range(n_above)), *(str(n_above + up) for up in drawn.parent[1:].tolist())],
        "values": pack(shown_bytes / unit),
        "labels": [_label(*box) for box in boxes],
        "text": [_size(tree, row, whole_bytes, room) for tree, row, room in boxes],
        "hovertext": [_whole_name(tree, row, whole_bytes) for tree, row, _ in boxes],
        "textinfo": "label+text", "hovertemplate": "%{hovertext}<extra></extra>",
        "customdata": [*callers, *(_target(drawn, row) for row in n_rows)], "meta": n_above,
        "tiling": {"orientation": "v", "pad": 1}, "domain": {"y": [1 - share, 1]}, "leaf": {"opacity": 1},
        "maxdepth": n_above + levels, "pathbar": {"visible": False},
        "marker": {
            "colors": [*(_NEUTRAL for _ in callers), *(_color(drawn, row) for row in n_rows)],
            "line": {"width": 0},
        },
        "textposition": "middle left", "insidetextfont": {"size": 12, "color": INK},
    }  # fmt: skip
    layout = base_layout(hovermode="closest", uniformtext={"minsize": 11, "mode": "hide"})
    return {"data": [trace], "layout": layout}


MORE, LESS, SAME = "#F2A35E", "#7CC8A8", "#D5DAE0"
"""Colors of calls that hold more, less and as much: the tints of the page's bars, for dark letters."""


def difference(found: TreeDifference, root: int = 0) -> dict[str, Any]:
    """Return the icicle of two runs: a box is as wide as the larger of both, its color is the change.

    A call that holds nothing in one of them has the full color; one that holds half as much has half of it.
    """
    made = figure(found.tree, root)
    trace = made["data"][0]
    drawn, callers = found.pruned(root, MAX_NODES), trace["customdata"][: trace["meta"]]
    before = np.concatenate([found.before_bytes[callers], drawn.before_bytes]).tolist()
    after = np.concatenate([found.after_bytes[callers], drawn.after_bytes]).tolist()
    pairs = list(zip(before, after, strict=True))
    rooms = [145] * len(callers) + [_room(drawn.tree, row) for row in range(len(drawn.tree))]
    trace["text"] = [_change(*pair) if room > 8 else "" for pair, room in zip(pairs, rooms, strict=True)]
    trace["marker"]["colors"] = [_shade(*pair) for pair in pairs]
    trace["hovertext"] = [
        f"{name.partition('<br>')[0]}<br>{_both(*pair)}"
        for name, pair in zip(trace["hovertext"], pairs, strict=True)
    ]
    return made


def _both(before: int, after: int) -> str:
    return f"{format_bytes(before)} before, {format_bytes(after)} after: {_change(before, after)}"


def _change(before: int, after: int) -> str:
    if before == after:
        return "as much"
    return f"{'+' if after > before else '−'}{format_bytes(abs(after - before))}"


def _shade(before: int, after: int) -> str:
    share = (after - before) / max(before, after, 1)
    ends = (SAME, MORE if share > 0 else LESS)
    low, high = ([int(color[i : i + 2], 16) for i in (1, 3, 5)] for color in ends)
    mixed = (round(a + (b - a) * abs(share)) for a, b in zip(low, high, strict=True))
    return "#" + "".join(f"{part:02X}" for part in mixed)


def callers_of(whole: Tree, root: int) -> list[int]:
    """Return the rows that lead to *root*, the outermost first: everything, then caller by caller."""
    path = [root] if root else []
    while path and path[0]:
        path.insert(0, int(whole.parent[path[0]]))
    return path[:-1]


def _callers(whole: Tree, root: int, most: int) -> list[int]:
    """Return the callers to be drawn: the nearest ones, and everything always."""
    path = callers_of(whole, root)
    return path if len(path) <= most else [0, *path[len(path) - most + 1 :]]


def height_px(whole: Tree) -> int:
    """Return the height for the whole tree; it stays while the user zooms in, so that nothing below moves."""
    return ROW_PX * _rows(whole)


def _rows(whole: Tree) -> int:
    return min(max(_levels(prune(whole, 0, MAX_NODES)), MIN_ROWS), MAX_ROWS)


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
    return f"{_label(drawn, row, 120)}<br>{_size(drawn, row, whole, 120)}"


def _size(drawn: Tree, row: int, whole: int, room: int) -> str:
    n_bytes = int(drawn.total_bytes[row])
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
