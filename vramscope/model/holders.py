"""Who held a block: the way to it from a name of the program, as capture wrote it into a label."""

import json
from dataclasses import dataclass
from typing import Any

PREFIX = "held by: "
"""Begins the name of every label that tells a holder; its category is UNKNOWN."""

Word = tuple[Any, ...]
"""``(kind, name, …)``; kinds: local, global, context, unreachable (the first word); attribute, key, item,
closure, frame, traceback, optimizer, ctx, grad, graph, nodes, saved, variable, hook, kept_at, and part for
what has no name."""


@dataclass(frozen=True, slots=True)
class Holding:
    """The way to one block."""

    words: tuple[Word, ...]

    def has(self, kind: str) -> bool:
        """Whether the way leads through something of this kind."""
        return any(word[0] == kind for word in self.words)

    def first(self, kind: str) -> Word | None:
        """The first word of that kind."""
        return next((word for word in self.words if word[0] == kind), None)


def holding_of(name: str) -> Holding | None:
    """Of a label's name; None where it tells no holder, or in words that we do not know."""
    if not name.startswith(PREFIX):
        return None
    try:
        words = json.loads(name[len(PREFIX) :])
    except ValueError:
        return None
    if not isinstance(words, list) or not all(isinstance(word, list) and len(word) > 1 for word in words):
        return None
    return Holding(tuple(tuple(word) for word in words))
