"""Analyses: one question about a recording per module, pure functions over columns, named ``ANALYSIS``."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from vramscope import registry
from vramscope.model.finding import Finding


@dataclass(frozen=True, slots=True)
class Analysis:
    """One question about a recording, with the function that answers it."""

    name: str
    question: str
    run: Callable[..., Any]
    """``run(recording, **options)`` returns a frozen result; it is deterministic and does no I/O."""
    findings: Callable[[Any], list[Finding]] | None = None
    """Derives findings from the result: what to report without being asked."""


def asking(
    question: str, run: Callable[..., Any], findings: Callable[[Any], list[Finding]] | None = None
) -> Analysis:
    """Return the analysis that answers a question by *run*, and is called like that function."""
    return Analysis(run.__name__, question, run, findings)


@cache
def analyses() -> dict[str, Analysis]:
    """Every analysis by name."""
    return registry.parts(sys.modules[__name__], Analysis)


def own_analyses() -> dict[str, Analysis]:
    """The analyses of this distribution by name: those that ``Recording`` has as typed methods."""
    return registry.own_parts(sys.modules[__name__], Analysis)


@cache
def find(name: str) -> Analysis | None:
    """The analysis called *name*, or None."""
    # One question loads one answer: all of them take 0.1 s.
    return registry.part_in_own_file(sys.modules[__name__], Analysis, name) or analyses().get(name)
