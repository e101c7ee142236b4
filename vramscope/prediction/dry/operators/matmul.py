"""Products of matrices: cuBLAS takes one workspace for each thread and stream that uses it, and keeps it."""

from typing import Any

import torch

from vramscope.prediction.dry.operators import NOTHING, Call, Extra, Row


def _product(call: Call) -> Extra:
    """A copy of each matrix that cuBLAS cannot read as it lies, and the workspace.

    That is taken at the first product on the program's thread, and at the first on autograd's, which has a
    handle of its own.
    """
    met = call.met
    copies = tuple(
        one.numel() * one.element_size()
        for one in call.args[: 3 if "add" in call.func._schema.name else 2]
        if isinstance(one, torch.Tensor) and one.dim() in (2, 3) and not _is_readable(one)
    )
    if met.is_backward in met.handles:
        return Extra(after=copies) if copies else NOTHING
    met.handles.add(met.is_backward)
    return Extra(after=copies, kept=(met.card.workspace_bytes,))


def _is_readable(matrix: Any) -> bool:
    """Whether rows or columns lie in one piece, none over another."""
    (rows, columns), (down, right) = matrix.shape[-2:], matrix.stride()[-2:]
    return bool((right == 1 and down >= max(1, columns)) or (down == 1 and right >= max(1, rows)))


_SOURCE = "aten/src/ATen/cuda/CublasHandlePool.cpp: a handle a thread, a workspace a handle and stream"

ROWS = {
    f"aten::{name}": Row(_SOURCE, _product)
    for name in (
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "addbmm",
        "mv",
        "addmv",
        "dot",
        "vdot",
        "_addmm_activation",
        "addr",
    )
}


def linear(input: Any, weight: Any, bias: Any = None) -> Any:  # noqa: A002 -- the schema's names
    """``aten::linear``: to the product of a subclass of tensors it would add the bias out of place."""
    if bias is None:
        return torch.matmul(input, weight.t())
    if input.dim() == 2:
        return torch.addmm(bias, input, weight.t())
    if input.is_contiguous():
        flat = input.reshape(-1, input.size(-1))
        return torch.addmm(bias, flat, weight.t()).view(*input.shape[:-1], weight.size(0))
    return torch.matmul(input, weight.t()).add_(bias)


INSTEAD = {"linear": linear}
