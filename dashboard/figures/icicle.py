"""The icicle of the calls that lead to live bytes: at most MAX_NODES boxes, the rest is "other"."""

from typing import Any, NamedTuple

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
LETTERS = 145  # that Plotly puts into a picture 1,000 pixels wide
MOST_LETTERS = 120  # of a function, or of a file

# A shade per file, pale enough for dark text in both themes (contrast ≥ 7 : 1 with INK); the hue is none of a
# category, a phase or a part.
_TINTS = ("#B4C6D8", "#C6D5E2", "#A5BACE", "#D5E0EA", "#BCCBD6")
_NEUTRAL = "#DDE2E7"
INK = "#10202C"

WORDS = {"(all)": "all live memory", "(no stack)": NO_STACK, "(framework only)": "libraries only",
         "(other)": "other, smaller"}  # fmt: skip


class CallBox(NamedTuple):
    """A box: a call, everything live, or what is too small for a box of its own."""

    parent: int
    """Position of the caller's box; −1 for the outermost."""
    width: int
    """Bytes as wide as the box."""
    names: tuple[str, ...]
    """Names of the call, the longest first."""
    sizes: tuple[str, ...]
    """Texts of the second line, the longest first."""
    detail: str
    """What the box holds, in full."""
    target: int
    """Row of the whole tree that a click makes the root."""
    color: str


class Icicle(NamedTuple):
    """The boxes of a tree of calls, callers before callees, the outermost caller first."""

    boxes: tuple[CallBox, ...]
    n_callers: int
    """Boxes above the root of the picture; each is as wide as the picture."""
    n_levels: int
    """Rows of boxes that are drawn."""
    n_rows: int
    """Rows that the picture has space for: as many while the user zooms in, so that nothing below moves."""

    @property
    def root(self) -> int:
        """Row of the whole tree that the picture begins with."""
        return self.boxes[self.n_callers].target


def icicle(whole: Tree, root: int = 0) -> Icicle:
    """Return the boxes of the row *root* of *whole*, below its callers as boxes of the whole width."""
    drawn = prune(whole, root, MAX_NODES)
    all_rows = min(max(_levels(prune(whole, 0, MAX_NODES)), MIN_ROWS), MAX_ROWS)
    # The callers to be drawn: the nearest ones, and everything always.
    most = all_rows - LEAST_LEVELS
    path = callers_of(whole, root)
    callers = path if len(path) <= most else [0, *path[len(path) - most + 1 :]]
    levels = min(max(_levels(drawn), 2), all_rows - len(callers))
    whole_bytes = int(whole.total_bytes[0])
    # A caller holds more than what is shown of it; its box is as wide as the picture all the same.
    width = int(drawn.total_bytes[0])
    above = [_box(whole, row, i - 1, width, whole_bytes) for i, row in enumerate(callers)]
    parents = [len(above) - 1, *(drawn.parent[1:] + len(above)).tolist()]
    below = [
        _box(drawn, row, parent, int(drawn.total_bytes[row]), whole_bytes)
        for row, parent in enumerate(parents)
    ]
    return Icicle((*above, *below), len(above), len(above) + levels, all_rows)


def difference(found: TreeDifference, root: int = 0) -> Icicle:
    """Return the boxes of two runs: a box is as wide as the larger of both, its color is the change.

    A call that holds nothing in one of them has the full color; one that holds half as much has half of it.
    """
    made = icicle(found.tree, root)
    drawn, callers = found.pruned(root, MAX_NODES), [box.target for box in made.boxes[: made.n_callers]]
    before = np.concatenate([found.before_bytes[callers], drawn.before_bytes]).tolist()
    after = np.concatenate([found.after_bytes[callers], drawn.after_bytes]).tolist()
    changed = (
        box._replace(
            sizes=(change := _change(*pair),),
            detail=f"{format_bytes(pair[0])} before, {format_bytes(pair[1])} after: {change}",
            color=_shade(*pair),
        )
        for box, *pair in zip(made.boxes, before, after, strict=True)
    )
    return made._replace(boxes=tuple(changed))


def figure(drawn: Icicle) -> dict[str, Any]:
    """Return Plotly's icicle of the same boxes, for a file without the scripts of the pages."""
    width = max(drawn.boxes[0].width, 1)
    rooms = [LETTERS * box.width // width for box in drawn.boxes]
    unit, _ = byte_unit(width)
    trace = {
        "type": "icicle", "uid": "icicle", "branchvalues": "total", "sort": True,
        "ids": [str(row) for row in range(len(rooms))],
        "parents": [str(box.parent) if box.parent >= 0 else "" for box in drawn.boxes],
        "values": pack(np.array([box.width for box in drawn.boxes]) / unit),
        "labels": [_label(box, room) for box, room in zip(drawn.boxes, rooms, strict=True)],
        "text": [_fitting(box.sizes, room - 1) for box, room in zip(drawn.boxes, rooms, strict=True)],
        "hovertext": [f"{esc(box.names[0])}<br>{box.detail}" for box in drawn.boxes],
        "textinfo": "label+text", "hovertemplate": "%{hovertext}<extra></extra>",
        "tiling": {"orientation": "v", "pad": 1}, "leaf": {"opacity": 1},
        "domain": {"y": [1 - min(1.0, drawn.n_levels / drawn.n_rows), 1]},
        "maxdepth": drawn.n_levels, "pathbar": {"visible": False},
        "marker": {"colors": [box.color for box in drawn.boxes], "line": {"width": 0}},
        "textposition": "middle left", "insidetextfont": {"size": 12, "color": INK},
    }  # fmt: skip
    layout = base_layout(hovermode="closest", uniformtext={"minsize": 11, "mode": "hide"})
    return {"data": [trace], "layout": layout}


MORE, LESS, SAME = "#F2A35E", "#7CC8A8", "#D5DAE0"
"""Colors of calls that hold more, less and as much: the tints of the page's bars, for dark letters."""


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


def height_px(drawn: Icicle) -> int:
    """Return the height of the picture in pixels."""
    return ROW_PX * drawn.n_rows


def _levels(drawn: Tree) -> int:
    """Return the depth of the visible boxes: those of at least a hundredth of the width."""
    level = [1] * len(drawn)
    for row, parent in enumerate(drawn.parent.tolist()):
        level[row] = level[parent] + 1 if row else 1
    wide = (drawn.total_bytes * 100 >= drawn.total_bytes[0]).tolist()
    return min(max(deep for deep, seen in zip(level, wide, strict=True) if seen), MAX_ROWS)


def _box(drawn: Tree, row: int, parent: int, width: int, whole_bytes: int) -> CallBox:
    n_bytes = int(drawn.total_bytes[row])
    size = format_bytes(n_bytes)
    sizes = (f"{size} · {format_share(n_bytes, max(whole_bytes, 1))}", size)
    return CallBox(
        parent, width, _names(drawn, row), sizes, sizes[0], _target(drawn, row), _color(drawn, row)
    )


def _names(drawn: Tree, row: int) -> tuple[str, ...]:
    frame = drawn.frame(row)
    if not frame.file:
        return (WORDS.get(frame.function, frame.function),)
    function = frame.function[:MOST_LETTERS]
    return (f"{function} {place(frame)[:MOST_LETTERS]}", f"{function}:{frame.line}", function)


def _fitting(texts: tuple[str, ...], room: int) -> str:
    return next((text for text in texts if len(text) <= room), "")


def _label(box: CallBox, room: int) -> str:
    """Return the longest name that fits: Plotly would shrink the letters, or leave them out."""
    return esc(_fitting(box.names, room) or box.names[-1], room) if room >= 4 else ""


def _target(drawn: Tree, row: int) -> int:
    """Return the node of a box; that of the caller for "other", which then has space to show more."""
    node = int(drawn.node[row])
    return node if node >= 0 else int(drawn.node[drawn.parent[row]])


def _color(drawn: Tree, row: int) -> str:
    if not drawn.frame(row).file:
        return _NEUTRAL
    return _TINTS[int(drawn.file[row]) % len(_TINTS)]
