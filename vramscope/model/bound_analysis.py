"""A method of ``Recording`` that is the analysis of the same name."""

from collections.abc import Callable
from types import MethodType
from typing import Any


class BoundAnalysis:
    """The analysis that is called like the attribute, bound to the recording."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        """Ask the analysis of that *name*."""
        self._name = name

    def __get__(self, recording: Any, owner: type) -> Callable[..., Any]:
        # Late: the analyses depend on the model.
        from vramscope.analysis import find

        analysis = find(self._name)
        assert analysis is not None, self._name  # noqa: S101 -- the names are those of the analyses
        return analysis.run if recording is None else MethodType(analysis.run, recording)
