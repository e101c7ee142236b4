"""Every analysis as a method of ``Recording``; its signature stands in ``questions.pyi``.

``scripts/generate_questions.py`` writes both files; nobody edits them.
"""

from collections.abc import Callable
from types import MethodType
from typing import Any


class BoundAnalysis:
    """The analysis that is called like the attribute, bound to the recording."""

    __slots__ = ("_name",)

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, recording: Any, owner: type) -> Callable[..., Any]:
        # Late: the analyses depend on the model.
        from vramscope.analysis import find

        analysis = find(self._name)
        assert analysis is not None, self._name  # noqa: S101 -- the names below are those of the analyses
        return analysis.run if recording is None else MethodType(analysis.run, recording)


class Questions:
    """The questions that can be asked of a recording, each answered by the analysis of the same name."""

    __slots__ = ()

    accumulation = BoundAnalysis()
    allocations = BoundAnalysis()
    annotations = BoundAnalysis()
    batch_fit = BoundAnalysis()
    by_module = BoundAnalysis()
    by_rank = BoundAnalysis()
    by_stack = BoundAnalysis()
    categories = BoundAnalysis()
    churn = BoundAnalysis()
    compare = BoundAnalysis()
    composition = BoundAnalysis()
    empty_cache = BoundAnalysis()
    evaluation_peak = BoundAnalysis()
    fit = BoundAnalysis()
    fragmentation = BoundAnalysis()
    gradient_storage = BoundAnalysis()
    identity = BoundAnalysis()
    largest_free = BoundAnalysis()
    leaks = BoundAnalysis()
    lifetimes = BoundAnalysis()
    live_set = BoundAnalysis()
    oom = BoundAnalysis()
    own_peaks = BoundAnalysis()
    peak = BoundAnalysis()
    pins = BoundAnalysis()
    private_pools = BoundAnalysis()
    retained_graphs = BoundAnalysis()
    sampled_peaks = BoundAnalysis()
    scaling = BoundAnalysis()
    settings_advice = BoundAnalysis()
    shared_device = BoundAnalysis()
    small_allocations = BoundAnalysis()
    step_peaks = BoundAnalysis()
    strategies = BoundAnalysis()
    timeline = BoundAnalysis()
    tree = BoundAnalysis()
    verdicts = BoundAnalysis()
    waterfall = BoundAnalysis()
    what_if = BoundAnalysis()
    wide_numbers = BoundAnalysis()
    window = BoundAnalysis()
    would_fit = BoundAnalysis()
