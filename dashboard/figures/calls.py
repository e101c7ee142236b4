"""Which calls lead to the bytes that are live at an instant? The tree below the icicle."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.folding import Folded, Holders


@dataclass(frozen=True, slots=True)
class Tree:
    """The calls that lead to the bytes: node = row of the folded stacks, 0 = everything."""

    parent: NDArray[Any]
    self_bytes: NDArray[Any]
    total_bytes: NDArray[Any]
    count: NDArray[Any]
    """Allocations below, the node's own included."""


def tree(folded: Folded, held: Holders) -> Tree:
    """Totals over callers; parents precede their children, so one pass from the end suffices."""
    n_nodes = len(folded.stacks)
    own, number = np.zeros(n_nodes, "i8"), np.zeros(n_nodes, "i8")
    np.add.at(own, held.folded_id, held.n_bytes)
    np.add.at(number, held.folded_id, held.count)
    total, below = own.tolist(), number.tolist()
    parent = folded.stacks.parent.tolist()
    for node in range(n_nodes - 1, 0, -1):
        total[parent[node]] += total[node]
        below[parent[node]] += below[node]
    return Tree(folded.stacks.parent, own, np.array(total, "i8"), np.array(below, "i8"))
