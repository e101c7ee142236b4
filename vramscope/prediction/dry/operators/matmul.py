"""Products of matrices: cuBLAS takes a workspace, for each thread that uses it or for each product.

Before torch 2.15 a thread keeps the workspace of its first product on a stream; from then on each product
takes one and gives it back, and a product with a bias one of cuBLASLt's. Before 2.12 the
first such product of a thread takes that one for good, beside the other.
"""

import os
import re
from typing import Any

import torch

from vramscope.prediction.cards import Hardware
from vramscope.prediction.dry import versions
from vramscope.prediction.dry.operators import NOTHING, Call, OwnMemory, RunSoFar
from vramscope.prediction.dry.operators._reduce import passing

_LT_KIB = 1024
"""What cuBLASLt is given where it has a workspace of its own (``parseCUDABlasLtWorkspaceSize``)."""
_OF_LT = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def _product(call: Call) -> OwnMemory:
    """A copy of each matrix that cuBLAS cannot read as it lies, and the workspace.

    Where that is kept, it is taken at the first product on the program's thread, and at the first on
    autograd's, which has a handle of its own.
    """
    so_far = call.so_far
    if not call.out.numel():
        return NOTHING
    copies = tuple(
        one.numel() * one.element_size()
        for one in call.args[: 3 if "add" in call.func._schema.name else 2]
        if isinstance(one, torch.Tensor) and not _is_readable(one)
    )
    if not versions.keeps_workspaces():
        return OwnMemory(after=(*copies, _lt_bytes() if _is_by_lt(call) else workspace_bytes(so_far.card)))
    kept = kept_by_product(so_far)
    if versions.keeps_lt_workspaces() and _is_by_lt(call) and _is_first(so_far, so_far.lt_handles):
        kept = (*kept, _lt_bytes())
    return OwnMemory(after=copies, kept=kept) if copies or kept else NOTHING


def kept_by_product(so_far: RunSoFar) -> tuple[int, ...]:
    """The workspace that a thread's first product on a stream takes for good; nothing at any later one."""
    if versions.keeps_workspaces() and _is_first(so_far, so_far.handles):
        return (workspace_bytes(so_far.card),)
    return ()


def _is_first(so_far: RunSoFar, handles: set[tuple[bool, int]]) -> bool:
    """Whether this thread has no workspace of that kind on its stream yet; from now on it has."""
    handle = (so_far.is_backward, so_far.stream.now())
    is_new = handle not in handles
    handles.add(handle)
    return is_new


def taken_by_product(so_far: RunSoFar) -> tuple[tuple[str, int], ...]:
    """The workspace of one product as a part of ``OwnMemory.plan``; nothing where the thread keeps one."""
    return () if versions.keeps_workspaces() else passing(workspace_bytes(so_far.card))


def workspace_bytes(card: Hardware) -> int:
    """The bytes of cuBLAS's workspace: those that ``CUBLAS_WORKSPACE_CONFIG`` asks for, else the card's."""
    asked = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    return sum(1024 * int(kib) * int(times) for kib, times in asked) if asked else card.workspace_bytes


def _lt_bytes() -> int:
    asked = os.environ.get("CUBLASLT_WORKSPACE_SIZE", "")
    return 1024 * (int(asked) if asked.isdigit() else _LT_KIB)


def _is_by_lt(call: Call) -> bool:
    """Whether cuBLASLt multiplies and adds a bias at once (``isInputCompliesAddmmCudaLt`` of Blas.cpp)."""
    if not call.func._schema.name.endswith(("addmm", "addmm_activation")) or call.given("beta", 1) != 1:
        return False
    bias, one, other = call.args[:3]
    is_row = bias.is_contiguous() and bias.squeeze().dim() == 1 and bias.size(-1) == other.size(1)
    is_fused = "activation" in call.func._schema.name and bias.dim() == 2
    return (is_row or is_fused) and one.dtype in _OF_LT and min(*one.shape, *other.shape) > 1


def _is_readable(matrix: Any) -> bool:
    """Whether rows or columns lie in one piece, none over another; a vector may have gaps."""
    if matrix.dim() not in (2, 3):
        return matrix.dim() != 1 or matrix.stride(0) != 0 or matrix.numel() <= 1
    (rows, columns), (down, right) = matrix.shape[-2:], matrix.stride()[-2:]
    return bool((right == 1 and down >= max(1, columns)) or (down == 1 and right >= max(1, rows)))


_GROUP_BYTES, _MAPS_BYTES = 60, 512


def _grouped(call: Call) -> OwnMemory:
    """CUTLASS has a table of the groups and maps for each multiprocessor; else each group is a product."""
    one, other, offsets = call.args[0], call.args[1], call.given("offs")
    card = call.so_far.card
    if one.dtype != torch.bfloat16 or card.capability not in ((9, 0), (10, 0)):
        return OwnMemory(after=tuple(n for kind, n in taken_by_product(call.so_far) if kind == "taken"),
                         kept=kept_by_product(call.so_far))  # fmt: skip
    count = offsets.numel() if offsets is not None else max(one.size(0), other.size(0))
    return OwnMemory(after=(_GROUP_BYTES * count, _MAPS_BYTES * card.n_multiprocessors))


def _grouped_shape(one: Any, other: Any, offs: Any = None, _bias: Any = None, out_dtype: Any = None) -> Any:
    """A result of any type; torch's formula knows those of CUTLASS only. Rows begin at whole 16 bytes."""
    dtype = out_dtype or one.dtype
    size: tuple[Any, ...]
    if one.dim() == other.dim() == 2:
        size = (offs.size(0), one.size(0), other.size(1))
    elif one.dim() == other.dim():
        size = (one.size(0), one.size(1), other.size(-1))
    else:
        size = (one.size(-2), other.size(-1))
    unit = 16 // dtype.itemsize
    row = -(-size[-1] // unit) * unit
    stride = (size[-2] * row, row, 1)[-len(size) :]
    return torch.empty_strided(size, stride, dtype=dtype, device=one.device)


SHAPES = {torch.ops.aten._grouped_mm.default: _grouped_shape}


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


REPLACEMENTS = {"linear": linear}
