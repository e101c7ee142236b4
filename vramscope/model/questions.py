"""Every analysis as a method of ``Recording``; its signature stands in ``questions.pyi``.

``scripts/generate_questions.py`` writes both files; nobody edits them.
"""

from vramscope.model.bound_analysis import BoundAnalysis

_NAMES = """
accumulation allocations annotations attention_weights batch_fit by_module by_rank by_stack categories compare
driver_calls empty_cache evaluation_peak fit forecast fragmentation gathered_parameters gradient_storage
held_once identity kept_activations leaks lifetimes logits oom own_peaks peak pinned_growth pins private_pools
retained_graphs sampled_peaks scaling settings_advice small_allocations step_peaks strategies timeline tree
verdicts waterfall what_if wide_results window
"""


class Questions:
    """The questions that can be asked of a recording, each answered by the analysis of the same name."""

    __slots__ = ()


for _name in _NAMES.split():
    setattr(Questions, _name, BoundAnalysis(_name))
