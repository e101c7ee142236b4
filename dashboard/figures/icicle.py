"""Which calls lead to the bytes? An icicle of at most MAX_NODES; what is cut is shown as "other"."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.folding import Folded
from vramscope.units import format_bytes

from .calls import Tree
from .names import place
from .theme import base_layout, byte_unit, esc, pack

MAX_NODES = 250  # measured: 300 nodes draw in 0.35 s, 1000 in 1.5 s, 3000 in 6 s
MAX_LEVELS = 14
UNKNOWN = "no stack recorded"
ROW_PX, MIN_ROWS, MAX_ROWS = 40, 4, 13


@dataclass(frozen=True, slots=True)
class Cut:
    """What is drawn: real nodes, and for each node with something left out one "other"."""

    node: NDArray[Any]
    """Row of the tree; −1 for an "other"."""
    parent: NDArray[Any]
    """Position in this table of the parent; −1 for the root."""
    n_bytes: NDArray[Any]
    left_out: NDArray[Any]
    """How many nodes an "other" stands for; 0 for the bytes whose stack has no Python frame."""


def cut(tree: Tree, root: int = 0, limit: int = MAX_NODES) -> Cut:
    """The largest nodes below *root* with their callers, at most *limit* rows."""
    below = _subtree(tree, root)
    order = below[np.lexsort((below, -tree.total_bytes[below]))]
    keep = min(len(order), limit)
    while True:
        rows = list(_rows(tree, root, np.sort(order[:keep])))
        if len(rows) <= limit or keep <= 1:
            columns = [np.array(column, "i8") for column in zip(*rows, strict=True)]
            return Cut(*columns)
        keep -= max(1, (len(rows) - limit) // 2)


def _subtree(tree: Tree, root: int) -> NDArray[Any]:
    """Nodes that hold something, *root* and below, to the depth that can be read."""
    level = {root: 0}
    for node in np.flatnonzero(tree.total_bytes > 0).tolist():
        above = level.get(int(tree.parent[node])) if node else None
        if node != root and above is not None and above < MAX_LEVELS:
            level[node] = above + 1
    return np.array(list(level))


def _rows(tree: Tree, root: int, kept: NDArray[Any]) -> Iterator[tuple[int, int, int, int]]:
    position = {int(node): row for row, node in enumerate(kept)}
    shown = tree.self_bytes[kept].copy()
    for node in kept.tolist():
        yield node, -1 if node == root else position[int(tree.parent[node])], int(tree.total_bytes[node]), 0
        if node != root:
            shown[position[int(tree.parent[node])]] += tree.total_bytes[node]
    if root == 0 and tree.self_bytes[0]:
        yield -1, 0, int(tree.self_bytes[0]), 0
    dropped = np.setdiff1d(np.flatnonzero(np.isin(tree.parent, kept) & (tree.total_bytes > 0)), [*kept, 0])
    for row in np.flatnonzero(tree.total_bytes[kept] > shown).tolist():
        n_dropped = int((tree.parent[dropped] == kept[row]).sum())
        yield -1, row, int(tree.total_bytes[kept[row]] - shown[row]), n_dropped


def rows(drawn: Cut) -> int:
    """Levels of the picture."""
    level = [0] * len(drawn.node)
    for row, parent in sorted(enumerate(drawn.parent.tolist()), key=lambda pair: drawn.node[pair[0]] < 0):
        level[row] = level[parent] + 1 if parent >= 0 else 1
    return max(level, default=1)


def height_px(tree: Tree) -> int:
    """Of the whole tree's picture; kept while the user goes into it, so that nothing below jumps."""
    return ROW_PX * min(max(rows(cut(tree)), MIN_ROWS), MAX_ROWS)


def figure(tree: Tree, folded: Folded, root: int = 0) -> dict[str, Any]:
    """The icicle below *root*; ``customdata`` carries each box's node for the click."""
    drawn = cut(tree, root)
    share = min(1.0, rows(drawn) * ROW_PX / height_px(tree))
    whole = max(int(tree.total_bytes[0]), 1)
    unit, _ = byte_unit(int(tree.total_bytes[0]))
    labels = [_label(folded, drawn, row) for row in range(len(drawn.node))]
    sizes = [_size(int(n), whole) for n in drawn.n_bytes]
    trace = {
        "type": "icicle", "uid": "icicle", "branchvalues": "total", "sort": True,
        "ids": [str(row) for row in range(len(drawn.node))],
        "parents": ["" if parent < 0 else str(parent) for parent in drawn.parent.tolist()],
        "values": pack(drawn.n_bytes / unit), "labels": labels, "text": sizes, "textinfo": "label+text",
        "customdata": [_target(drawn, row) for row in range(len(drawn.node))],
        "hovertemplate": "%{label}<br>%{text}<extra></extra>",
        "tiling": {"orientation": "v", "pad": 1}, "domain": {"y": [1 - share, 1]}, "leaf": {"opacity": 1},
        "pathbar": {"visible": False},
        "marker": {"colors": [_colour(folded, int(node)) for node in drawn.node], "line": {"width": 0}},
        "textposition": "middle left", "insidetextfont": {"size": 12, "color": "#10202c"},
    }  # fmt: skip
    return {"data": [trace], "layout": base_layout(hovermode="closest")}


def _target(drawn: Cut, row: int) -> int:
    """Where a click leads: an "other" opens its parent, which then has room to show more."""
    node = int(drawn.node[row])
    return node if node >= 0 else max(int(drawn.node[drawn.parent[row]]), 0)


def _size(n_bytes: int, whole: int) -> str:
    return f"{format_bytes(n_bytes)} · {100 * n_bytes / whole:.1f} %"


def _label(folded: Folded, drawn: Cut, row: int) -> str:
    node = int(drawn.node[row])
    if node == 0:
        return "all live memory"
    if node > 0:
        frame = folded.stacks.frame(node)
        return f"{esc(frame.function, 60)} {esc(place(frame), 60)}"
    left_out = int(drawn.left_out[row])
    if left_out:
        return f"other ({left_out} more {'call' if left_out == 1 else 'calls'})"
    return UNKNOWN


# One hue per file, pale enough for dark text in both themes (contrast ≥ 7 : 1 with #10202c).
_TINTS = ("#A9CCE3", "#F5CBA7", "#A9DFBF", "#E8C1DD", "#F7E7A1", "#B8D8E8", "#D5C4A1", "#C5CBE9")
_NEUTRAL = "#C9D0D8"


def _colour(folded: Folded, node: int) -> str:
    if node <= 0:
        return _NEUTRAL
    return _TINTS[int(folded.stacks.file[node]) % len(_TINTS)]
