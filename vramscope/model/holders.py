"""The holder of a block: the path to it from a name of the program, as capture wrote it into a label."""

import json
from dataclasses import dataclass
from typing import Any

PREFIX = "held by: "
"""Prefix of the name of every label that names a holder; the label's category is UNKNOWN."""

Word = tuple[Any, ...]
"""``(kind, name, …)``. The kind of the first word is one of local, global, context, unreachable. Later kinds:
attribute, key, item, closure, frame, traceback, optimizer, ctx, grad, graph, nodes, saved, variable, hook,
kept_at, and part for something without a name.
"""


@dataclass(frozen=True, slots=True)
class Holding:
    """The path of references that leads to one block."""

    words: tuple[Word, ...]

    def has(self, kind: str) -> bool:
        """Whether the path contains a word of this kind."""
        return any(word[0] == kind for word in self.words)

    def first(self, kind: str) -> Word | None:
        """The first word of this kind, or None."""
        return next((word for word in self.words if word[0] == kind), None)


def holding_of(name: str) -> Holding | None:
    """Parse the name of a label; None if it names no holder or uses words that this version does not know."""
    if not name.startswith(PREFIX):
        return None
    try:
        words = json.loads(name[len(PREFIX) :])
    except ValueError:
        return None
    if not isinstance(words, list) or not all(isinstance(word, list) and len(word) > 1 for word in words):
        return None
    return Holding(tuple(tuple(word) for word in words))
