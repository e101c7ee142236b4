"""Lays the trees of calls of two runs over one another: which calls hold more at the peak, which less."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.tree import SPECIAL, Tree, prune, summed
from vramscope.model.stacks import Frame
from vramscope.model.table import EqualByValue, sums_of

Renamed = Callable[[str], str]
"""The name that both runs have for a file."""


@dataclass(frozen=True, slots=True)
class TreeDifference(EqualByValue):
    """The calls of two runs in one tree, and what each call led to in each run."""

    tree: Tree
    """One row per call of either run; its own bytes are those of the run in which the call holds more."""
    before_bytes: NDArray[np.int64]
    """Bytes in the earlier run, by row: of the call and all calls below it."""
    after_bytes: NDArray[np.int64]
    """The same in the later run."""

    def pruned(self, root: int, max_nodes: int) -> "TreeDifference":
        """Return the largest calls from *root* down; what is left out is in rows named ``(other)``.

        *root* becomes row 0.
        """
        drawn = prune(self.tree, root, max_nodes)
        is_other = drawn.node < 0
        shown = drawn.node[~is_other]
        is_left_out = np.ones(len(self.tree), dtype="?")
        is_left_out[[*shown, 0]] = False
        left_out = np.flatnonzero(is_left_out)
        owners = drawn.node[drawn.parent[is_other]]
        sides = []
        for n_bytes in (self.before_bytes, self.after_bytes):
            of_parent = sums_of(self.tree.parent[left_out], n_bytes[left_out], len(self.tree))
            side = np.zeros(len(drawn), "i8")
            side[~is_other], side[is_other] = n_bytes[shown], of_parent[owners]
            sides.append(side)
        return TreeDifference(drawn, *sides)


def overlaid(before: Tree, after: Tree, common: tuple[Renamed, Renamed]) -> TreeDifference:
    """Return both trees as one; a call of both runs is one row.

    A call has the same callers, function and file in both runs. Its line may have moved: where a caller has
    as many calls of one function and file in both runs, the first is the first, the second the second.

    *common* gives, for each run, the files the names that both runs have.
    """
    rows: dict[tuple[int, str, str, int], int] = {}
    frames: list[Frame] = []
    parents: list[int] = []
    places: list[NDArray[np.int64]] = []
    keyed = [_keyed(tree, rename) for tree, rename in zip((before, after), common, strict=True)]
    moved = _moved_lines(*keyed)
    # Callers come before callees. A tree has one row per call that leads to live memory: some thousands.
    for tree, keys, lines in zip((before, after), keyed, ({}, moved), strict=True):
        place = np.zeros(len(tree), "i8")
        for row, (function, file, line) in enumerate(keys):
            parent = int(place[tree.parent[row]]) if row else -1
            key = (parent, function, file, lines.get((function, file, line), line))
            if key not in rows:
                rows[key] = len(frames)
                frames.append(tree.frame(row))
                parents.append(max(parent, 0))
            place[row] = rows[key]
            frames[rows[key]] = tree.frame(row)  # as the later run has it
        places.append(place)
    return _joined(frames, parents, (before, after), places)


def _keyed(tree: Tree, rename: Renamed) -> list[tuple[str, str, int]]:
    found = (tree.frame(row) for row in range(len(tree)))
    return [(frame.function, rename(frame.file), frame.line) for frame in found]


def _moved_lines(
    before: list[tuple[str, str, int]], after: list[tuple[str, str, int]]
) -> dict[tuple[str, str, int], int]:
    """Return the earlier line of each later one whose function has as many lines in both runs."""
    sides: list[dict[tuple[str, str], set[int]]] = [{}, {}]
    for side, keys in zip(sides, (before, after), strict=True):
        for function, file, line in keys:
            side.setdefault((function, file), set()).add(line)
    return {
        (*name, new): old
        for name, lines in sides[1].items()
        if len(lines) == len(sides[0].get(name, ()))
        for new, old in zip(sorted(lines), sorted(sides[0][name]), strict=True)
    }


def _joined(
    frames: list[Frame], parents: list[int], trees: tuple[Tree, Tree], places: list[NDArray[np.int64]]
) -> TreeDifference:
    n_rows, parent = len(frames), np.array(parents, "i4")
    own, count, total = (
        np.stack(
            [sums_of(place, getattr(tree, name), n_rows) for tree, place in zip(trees, places, strict=True)]
        )
        for name in ("self_bytes", "count", "total_bytes")
    )
    # First the empty file of rows that are no call, as in every tree.
    names = dict.fromkeys(["", *(word for frame in frames for word in (frame.function, frame.file))])
    words = {word: at for at, word in enumerate(names)}
    larger = own.max(axis=0)
    tree = Tree(
        parent=parent,
        function=np.array([words[frame.function] for frame in frames], "i4"),
        file=np.array([words[frame.file] for frame in frames], "i4"),
        line=np.array([frame.line for frame in frames], "i4"),
        self_bytes=larger,
        total_bytes=summed(parent, larger),
        count=count.sum(axis=0),
        node=np.arange(n_rows, dtype="i4"),
        strings=(*words, *SPECIAL),
    )
    return TreeDifference(tree, total[0], total[1])
