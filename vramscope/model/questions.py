"""Every analysis as a method of ``Recording``; its signature stands in ``questions.pyi``.

``scripts/generate_questions.py`` writes both files; nobody edits them.
"""

from vramscope.model.bound_analysis import BoundAnalysis


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
    forecast = BoundAnalysis()
    fragmentation = BoundAnalysis()
    gathered_parameters = BoundAnalysis()
    gradient_storage = BoundAnalysis()
    held_once = BoundAnalysis()
    identity = BoundAnalysis()
    kept_activations = BoundAnalysis()
    largest_free = BoundAnalysis()
    leaks = BoundAnalysis()
    lifetimes = BoundAnalysis()
    live_set = BoundAnalysis()
    logits = BoundAnalysis()
    oom = BoundAnalysis()
    own_peaks = BoundAnalysis()
    peak = BoundAnalysis()
    pinned_growth = BoundAnalysis()
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
