"""Formulas of gradients that change a tensor of their own in place, but never a subclass of tensors.

Fakes are a subclass, so ``torch/csrc/autograd/FunctionsManual.cpp`` and its helpers take the other way for
them, which makes one tensor more. Each entry takes the way that CUDA takes.
"""

from typing import Any, NamedTuple

import torch

_aten = torch.ops.aten


class InPlace(NamedTuple):
    """What is run instead of an operator, while the gradient of certain operators is computed."""

    func: Any
    nodes: frozenset[str]

    def is_meant(self) -> bool:
        """Whether autograd is at one of these gradients now."""
        node = torch._C._current_autograd_node()
        return node is not None and node.name() in self.nodes


_SELECTED = ("Sort", "Topk", "Max", "Min", "Median", "Mode", "Kthvalue", "Nanmedian", "Cummax", "Cummin")

IN_PLACE = {
    _aten.scatter.src: InPlace(
        _aten.scatter_.src, frozenset(f"{name}Backward{n}" for name in _SELECTED for n in (0, 1))
    ),
    _aten.scatter_add.default: InPlace(
        _aten.scatter_add_.default, frozenset({"GatherBackward0", "CummaxBackward0", "CumminBackward0"})
    ),
    _aten.index_add.default: InPlace(_aten.index_add_.default, frozenset({"IndexSelectBackward0"})),
    _aten.index_put.default: InPlace(_aten.index_put_.default, frozenset({"IndexBackward0"})),
    _aten.mul.Tensor: InPlace(_aten.mul_.Tensor, frozenset({"BinaryCrossEntropyWithLogitsBackward0"})),
    _aten.sub.Tensor: InPlace(_aten.sub_.Tensor, frozenset({"BinaryCrossEntropyWithLogitsBackward0"})),
}
"""The rewrites, under the operator that is seen."""
