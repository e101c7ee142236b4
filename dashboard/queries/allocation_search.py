"""The search among allocations by words, sizes and lifetimes in one line.

An example is ``attention size>64MiB life>2s alive``; each word must occur in a function or file of the stack.
"""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.lifetimes import Allocations
from vramscope.model.stacks import Stacks

MAX_LETTERS = 200
_TERM = re.compile(r"(size|life)?([<>])(\d{1,9}(?:\.\d{1,6})?)([a-z]*)", re.ASCII)
_SIZES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_TIMES = {"": 10**9, "ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9}


@dataclass(frozen=True, slots=True)
class Query:
    """The conditions of a search; all must hold."""

    words: tuple[str, ...] = ()
    limits: tuple[tuple[str, str, float], ...] = ()
    """``(size or life, < or >, bytes or ns)``."""
    alive: bool = False
    """Only allocations that were never freed."""
    before: bool = False
    """Only allocations from before the recording."""

    def __bool__(self) -> bool:
        return self != Query()


def parse(text: str | None) -> Query:
    """Return the query of a text; a token that is not a condition is a word."""
    words, limits = [], []
    tokens = (text or "")[:MAX_LETTERS].lower().split()
    for token in tokens:
        limit = _limit(token)
        if limit:
            limits.append(limit)
        elif token not in ("alive", "before"):
            words.append(token)
    return Query(tuple(words), tuple(limits), "alive" in tokens, "before" in tokens)


def _limit(token: str) -> tuple[str, str, float] | None:
    match = _TERM.fullmatch(token)
    if not match:
        return None
    what, sign, digits, unit = match.groups()
    units = _TIMES if what == "life" else {**_SIZES, **{f"{k}ib": v for k, v in _SIZES.items() if k}}
    units = units if what == "life" else units | {f"{k}b": v for k, v in _SIZES.items() if k not in ("", "b")}
    return None if unit not in units else (what or "size", sign, float(digits) * units[unit])


def matching(query: Query, found: Allocations, stacks: Stacks) -> NDArray[Any]:
    """Return which allocations meet all conditions, shape (allocations,)."""
    hit = np.ones(len(found), dtype=bool)
    for word in query.words:
        hit &= _stacks_with(word, stacks)[found.stack_id]
    for what, sign, limit in query.limits:
        value = found.block_size if what == "size" else _lived_ns(found)
        hit &= value > limit if sign == ">" else value < limit
    if query.alive:
        hit &= found.free_event == -1
    if query.before:
        hit &= found.alloc_event < 0
    return hit


def _lived_ns(found: Allocations) -> NDArray[Any]:
    """Return the lifetimes in ns; infinite where not freed, or allocated before the recording."""
    ends = (found.free_event >= 0) & (found.alloc_event >= 0)
    return np.where(ends, found.free_ns - found.alloc_ns, np.inf)


def _stacks_with(word: str, stacks: Stacks) -> NDArray[Any]:
    """Return which stacks have a frame whose function or file contains *word*."""
    named = np.array([word in text.lower() for text in stacks.strings], dtype=bool)
    hit = named[stacks.function] | named[stacks.file]
    hit[0] = False
    return _inherited(hit, stacks.parent)


def _inherited(hit: NDArray[Any], parent: NDArray[Any]) -> NDArray[Any]:
    """Mark all nodes below marked ones; pointers jump twice as far each round, so few rounds do."""
    known, above = hit.copy(), parent.copy()
    while above.any():
        known |= known[above]
        above = above[above]
    return known
