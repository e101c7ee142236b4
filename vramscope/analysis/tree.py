"""Builds a flame graph of the calls that led to what was allocated at one instant."""

from dataclasses import dataclass

import numpy as np

from vramscope.analysis import asking
from vramscope.analysis.by_stack import StackBytes, by_stack
from vramscope.analysis.folding import Folded, fold
from vramscope.model.recording import Recording
from vramscope.model.stacks import Frame, Stacks
from vramscope.model.table import Array, Int32, Int64, Table, sums_of

ROOT = "(all)"
NO_STACK = "(no stack)"
FRAMEWORK = "(framework only)"
OTHER = "(other)"
SPECIAL = (ROOT, NO_STACK, FRAMEWORK, OTHER)
"""Words of rows that are no call: the last strings of every tree, where pruning finds the last of them."""


@dataclass(frozen=True, slots=True)
class Tree(Table):
    """A flame graph of bytes: one row per call that leads to live memory, callers before callees.

    Row 0 is the root with everything live. The bytes of a row are exactly those of its children plus its own.
    """

    parent: Int32
    """Row of the caller; 0 for the root itself."""
    function: Int32
    """Index into ``strings``."""
    file: Int32
    """Index into ``strings``; the empty string for rows that are no call, like ``(other)``."""
    line: Int32
    self_bytes: Int64
    """Bytes allocated by this call itself."""
    total_bytes: Int64
    """Bytes allocated by this call and all calls below it."""
    count: Int64
    """Live blocks of this call and all calls below it."""
    node: Int32
    """Row in the tree that this one was pruned from, for use as the next root; −1 for ``(other)``."""
    strings: tuple[str, ...] = ("",)
    no_stack_bytes: int = 0
    """Live bytes without a known call; part of the root's total."""

    def frame(self, row: int) -> Frame:
        """The call of a row; rows that are no call have a word in brackets as their function."""
        return Frame(self.strings[self.function[row]], self.strings[self.file[row]], int(self.line[row]))


def tree(recording: Recording, instant: int | None = None, *, folded: bool = True) -> Tree:
    """The flame graph of allocated bytes at one instant.

    Parameters
    ----------
    instant
        Number of events before the moment; None means the peak of allocated bytes.
    folded
        Leave out the frames of libraries, Python and C++.
    """
    return tree_of(recording.stacks, by_stack(recording, instant), folded=folded)


def tree_of(stacks: Stacks, live: StackBytes, *, folded: bool = True, known: Folded | None = None) -> Tree:
    """The same tree from bytes by stack that are known already; *known* is ``fold(stacks)``."""
    leaf = live.stack_id.astype("i8")
    shown = stacks
    if folded:
        own = known or fold(stacks)
        shown, leaf = own.stacks, np.asarray(own.of)[leaf]
    # Two more rows for bytes without a call: no stack recorded, or only framework frames.
    leaf = np.where(leaf > 0, leaf, len(shown) + (live.stack_id > 0))
    return _grown(shown, *(sums_of(leaf, column, len(shown) + 2) for column in (live.bytes, live.count)))


def _grown(stacks: Stacks, own_bytes: Array, own_count: Array) -> Tree:
    n_strings, n_nodes = len(stacks.strings), len(stacks)
    parent = np.concatenate([stacks.parent, [0, 0]])
    function = np.concatenate([stacks.function, [n_strings + 1, n_strings + 2]])
    function[0] = n_strings
    total, count = summed(parent, own_bytes), summed(parent, own_count)
    # A node without live memory is left out; the root stays even if nothing is live.
    kept = np.flatnonzero((count > 0) | (np.arange(n_nodes + 2) == 0))
    place = np.zeros(n_nodes + 2, dtype="i4")
    place[kept] = np.arange(len(kept))
    nothing = np.zeros(2, dtype="i4")
    return Tree(
        parent=place[parent[kept]],
        function=function[kept].astype("i4"),
        file=np.concatenate([stacks.file, nothing])[kept],
        line=np.concatenate([stacks.line, nothing])[kept],
        self_bytes=own_bytes[kept],
        total_bytes=total[kept],
        count=count[kept],
        node=np.arange(len(kept), dtype="i4"),
        strings=(*stacks.strings, *SPECIAL),
        no_stack_bytes=int(own_bytes[n_nodes]),
    )


def summed(parent: Array, own: Array) -> Array:
    """Own values plus those of all descendants, from the deepest level up."""
    total = np.array(own)
    depth = depths(parent)
    order = np.argsort(-depth, kind="stable")
    ends = np.searchsorted(-depth[order], -np.arange(int(depth.max(initial=0)), 0, -1), side="right")
    start = 0
    for end in ends.tolist():
        level = order[start:end]
        np.add.at(total, parent[level], total[level])
        start = end
    return total


def depths(parent: Array) -> Array:
    """Steps from each node to the root, by doubling the jump distance each time."""
    depth = (np.arange(len(parent)) > 0).astype("i8")
    ancestor = parent.astype("i8")
    while ancestor.any():
        depth = depth + depth[ancestor]
        ancestor = ancestor[ancestor]
    return depth


def prune(whole: Tree, root: int = 0, max_nodes: int = 250) -> Tree:
    """Cut the tree to at most *max_nodes* (≥ 2) rows from *root* down: the largest, and ``(other)`` for the
    rest.

    Every total stays exact. Row 0 of the result is *root*; ``node`` gives the rows in *whole*.
    """
    rows = np.flatnonzero(_below(whole, root))
    # Parents hold at least as much as children and precede them: any number of first rows is connected.
    ranked = rows[np.argsort(-whole.total_bytes[rows], kind="stable")]
    most = max(min(len(ranked), max_nodes), 1)
    fewest = 1
    while fewest < most:  # the largest number of rows that fits with the others they need
        middle = (fewest + most + 1) // 2
        if middle + len(_others(whole, ranked[:middle])[0]) <= max_nodes:
            fewest = middle
        else:
            most = middle - 1
    return _cut(whole, np.sort(ranked[:fewest]))


def _below(whole: Tree, root: int) -> Array:
    """Mask of *root* and its descendants: follow the callers, doubling the distance each time."""
    ancestor = whole.parent.astype("i8")
    ancestor[root] = root
    while True:
        further = ancestor[ancestor]
        if (further == ancestor).all():
            return ancestor == root if root else np.ones(len(whole), dtype="?")
        ancestor = further


def _others(whole: Tree, kept: Array) -> tuple[Array, Array, Array]:
    """The rows of *kept* with children outside of *kept*, and the bytes and blocks of these children."""
    place = np.full(len(whole), -1, dtype="i8")
    place[kept] = np.arange(len(kept))
    inner = place[whole.parent[kept]]
    is_child = (inner >= 0) & (kept != whole.parent[kept])
    missing = whole.total_bytes[kept] - whole.self_bytes[kept]
    np.subtract.at(missing, inner[is_child], whole.total_bytes[kept[is_child]])
    n_children = np.bincount(whole.parent[1:], minlength=len(whole))[kept]
    np.subtract.at(n_children, inner[is_child], 1)
    n_blocks = whole.count[kept].copy()
    np.subtract.at(n_blocks, inner[is_child], whole.count[kept[is_child]])
    owners = np.flatnonzero(n_children > 0)
    return owners, missing[owners], n_blocks[owners]


def _cut(whole: Tree, kept: Array) -> Tree:
    owners, missing, n_blocks = _others(whole, kept)
    place = np.zeros(len(whole), dtype="i4")
    place[kept] = np.arange(len(kept))
    other = len(whole.strings) - len(SPECIAL) + SPECIAL.index(OTHER)
    n_others = len(owners)
    nothing = np.zeros(n_others, dtype="i4")

    def column(name: str, added: Array) -> Array:
        values: Array = getattr(whole, name)[kept]
        return np.concatenate([values, added.astype(values.dtype)])

    parent = place[whole.parent[kept]]
    parent[0] = 0
    return Tree(
        parent=np.concatenate([parent, owners.astype("i4")]),
        function=column("function", np.full(n_others, other)),
        file=column("file", nothing),
        line=column("line", nothing),
        self_bytes=column("self_bytes", missing),
        total_bytes=column("total_bytes", missing),
        count=column("count", n_blocks),
        node=np.concatenate([whole.node[kept], np.full(n_others, -1, dtype="i4")]),
        strings=whole.strings,
        no_stack_bytes=whole.no_stack_bytes,
    )


ANALYSIS = asking("Which calls led to what was allocated at one instant?", tree)
