"""Names the mistake that makes memory grow, if the evidence leaves only one; else ``unknown``."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from vramscope.analysis.leaks.holders import (
    Held,
    before_graph,
    container_of,
    is_of_kept_optimizer,
    is_of_optimizer,
)
from vramscope.model.codes import LeakCause
from vramscope.package_data import rows

_ROWS = {LeakCause(cause): words for cause, *words in rows(__file__, "causes.tsv")}
CAUSES = {cause: sentence for cause, (sentence, _) in _ROWS.items()}
"""A sentence for each cause."""
ADVICE = {cause: edit for cause, (_, edit) in _ROWS.items()}
"""The edit that ends each cause."""

# Measured on every group of memory that grows in tests/leaks (125). Parameters that are made again with their
# Adam are two thirds optimizer state, all others 0.0; with gradients and the one moment of SGD a third is.
_LEAST_OPTIMIZER_FRACTION = 0.2
# Gradients that nothing clears are all of what grows; of what keeps a graph of gradients at most 0.68.
_LEAST_GRADIENT_FRACTION = 0.8

_OF_TENSORS_THEMSELVES = (LeakCause.KEPT_OUTPUT, LeakCause.CACHE)
_BY_KIND = {"traceback": LeakCause.TRACEBACK, "ctx": LeakCause.SAVED_ON_CTX}
# This matches ``NllLossBackward0``, but not its derivative, which a graph of gradients contains.
_LOSS_NODE = re.compile(r"(?:[Ll]oss|CrossEntropy)\w*(?<!Backward)Backward\d*$")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True, slots=True)
class Facts:
    """The evidence about one group of growing memory."""

    holdings: Sequence[Held]
    """Holders of the oldest blocks that stay."""
    is_replaced: bool
    """Whether blocks get larger instead of more numerous."""
    retains_graph: bool
    """Whether a backward has retain_graph=True."""
    creates_graph: bool
    """Whether a backward has create_graph=True."""
    optimizer_fraction: float
    """Fraction of the bytes that is optimizer state, by identity."""
    parameter_fraction: float
    """Fraction of the bytes that is parameters, by identity."""
    gradient_fraction: float
    """Fraction of the bytes that is gradients."""
    backward_grows: bool
    """Whether backward allocates more blocks from step to step."""
    has_old_optimizers: bool = False
    """Whether an optimizer took over from another, as in the next fold or trial."""
    unheld_fraction: float = 0.0
    """Fraction of the bytes that lines allocate of whose blocks the usual holder has none."""


def cause_of(facts: Facts) -> LeakCause:
    """Return the cause, one of ``CAUSES``."""
    # The state of old parameters may grow too: the history of L-BFGS.
    is_of_optimizer_state = facts.optimizer_fraction > _LEAST_OPTIMIZER_FRACTION
    if facts.has_old_optimizers and facts.parameter_fraction > 0 and not facts.is_replaced:
        is_cycle = 2 * sum(each.words[0][0] == "unreachable" for each in facts.holdings) > len(facts.holdings)
        return LeakCause.REFERENCE_CYCLE if is_cycle else LeakCause.KEPT_MODEL
    if is_of_optimizer_state and facts.parameter_fraction > 0 and not facts.is_replaced:
        return LeakCause.OPTIMIZER_STATE
    if not facts.holdings:
        return _unheld(facts)
    votes = Counter[LeakCause]()
    for holding in facts.holdings:
        votes[_of_one(facts, holding)] += holding.n_bytes
    best, n_bytes = votes.most_common(1)[0]
    if best in _OF_TENSORS_THEMSELVES and facts.unheld_fraction > 1 / 2:
        return LeakCause.UNKNOWN  # the search ended before it came to what keeps the most
    return best if n_bytes > votes.total() / 2 else LeakCause.UNKNOWN


def _unheld(facts: Facts) -> LeakCause:
    if facts.is_replaced:
        is_gradient = facts.gradient_fraction > _LEAST_GRADIENT_FRACTION
        return LeakCause.GRADIENT_NOT_CLEARED if is_gradient else LeakCause.UNKNOWN
    return LeakCause.UNDETACHED_STATE if facts.backward_grows and facts.retains_graph else LeakCause.UNKNOWN


def _of_one(facts: Facts, holding: Held) -> LeakCause:
    for kind, cause in _BY_KIND.items():
        if holding.has(kind):
            return cause
    is_unreachable = holding.words[0][0] == "unreachable"
    # No program steps an optimizer that no name leads to: it gets no new parameters.
    if is_of_optimizer(holding) and not is_unreachable:
        return _optimizer(facts, holding)
    if holding.has("hook") or any(word[1] in _HOOKS for word in holding.words):
        return LeakCause.HOOK
    if is_unreachable:
        return _unreachable(facts, holding)
    if holding.has("grad"):
        return _gradient(facts, holding)
    return _graph(facts, holding) if holding.has("graph") else _direct(facts, holding)


def _optimizer(facts: Facts, holding: Held) -> LeakCause:
    is_kept, has_parameters = is_of_kept_optimizer(holding), facts.parameter_fraction > 0
    if has_parameters:
        return LeakCause.KEPT_MODEL if is_kept else LeakCause.OPTIMIZER_STATE
    return LeakCause.KEPT_OPTIMIZER if is_kept else LeakCause.UNKNOWN


def _unreachable(facts: Facts, holding: Held) -> LeakCause:
    """Return the cause of an object that no name leads to: a cycle of Python objects or within autograd."""
    if holding.words[0][1] in ("Tensor", "Parameter"):
        return LeakCause.CREATE_GRAPH_CYCLE if facts.creates_graph else LeakCause.UNKNOWN
    return LeakCause.TRACEBACK if holding.has("traceback") else LeakCause.REFERENCE_CYCLE


def _gradient(facts: Facts, holding: Held) -> LeakCause:
    kinds = [word[0] for word in holding.words]
    if "graph" in kinds[kinds.index("grad") :]:
        return LeakCause.CREATE_GRAPH_CYCLE if facts.creates_graph else LeakCause.UNKNOWN
    return LeakCause.GRADIENT_NOT_CLEARED if facts.is_replaced else _direct(facts, holding)


def _graph(facts: Facts, holding: Held) -> LeakCause:
    entered = holding.first("graph")
    is_scalar = entered is not None and entered[2] == 1
    if container_of(holding):
        if facts.retains_graph:
            return LeakCause.RETAIN_GRAPH
        return LeakCause.LOSS_WITH_GRAPH if is_scalar else LeakCause.KEPT_OUTPUT
    # One variable leads to blocks of several steps: each step's graph refers to the one before. Losses that
    # are concatenated to a longer tensor need no such state: the path leads through the node of a loss.
    is_loss = is_scalar or _leads_through_loss(holding)
    return LeakCause.LOSS_WITH_GRAPH if is_loss else LeakCause.UNDETACHED_STATE


def _leads_through_loss(holding: Held) -> bool:
    nodes = holding.first("nodes")
    names = [str(node) for node, _ in nodes[1]] if nodes is not None and isinstance(nodes[1], list) else []
    names += [str(word[-1]) for word in holding.words if word[0] == "saved"]
    return any(_LOSS_NODE.search(name) for name in names)


def _direct(facts: Facts, holding: Held) -> LeakCause:
    container = container_of(holding)
    is_of_function = any("lru_cache" in str(word[1]) for word in before_graph(holding))
    if is_of_function or container.lower().endswith(("dict", "counter")):
        return LeakCause.CACHE
    if container:
        return LeakCause.KEPT_OUTPUT
    return LeakCause.GROWING_TENSOR if facts.is_replaced else LeakCause.UNKNOWN
