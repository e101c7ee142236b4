"""The storages of tensors: what has the memory, under views, sparse tensors and wrappers."""

from collections.abc import Callable
from typing import Any

import torch

PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
"""Classes of tensors that wrap no other tensor."""
# FakeTensor and FunctionalTensor: what torch.export and torch.compile trace with.
TRACERS = "torch._subclasses."


def storage_of(tensor: Any) -> Any:
    """The tensor's storage, or None if it has none of its own; runs no ``__torch_function__``.

    For a DTensor it is the storage of the local shard: the DTensor's own storage has no memory.
    """
    with torch._C.DisableTorchFunction():
        kind = type(tensor)
        is_plain = kind in PLAIN
        if not is_plain and hasattr(kind, "_local_tensor"):
            return storage_of(tensor._local_tensor)
        if not is_plain and kind.__module__.startswith(TRACERS):
            return None  # accessing its memory would warn
        try:
            storage = tensor.untyped_storage()
            return None if not is_plain and is_wrapper(kind) and not storage.data_ptr() else storage
        except (NotImplementedError, RuntimeError):  # sparse tensors, wrapper subclasses
            return None


def storages_of(tensor: Any) -> list[Any]:
    """The tensor's storage, or those of its parts if it has none of its own."""
    storage = storage_of(tensor)
    if storage is not None:
        return [storage]
    parts = [storage_of(part) for part in parts_of(tensor)]
    return [part for part in parts if part is not None]


def is_wrapper(kind: type) -> bool:
    """Whether a tensor class has its own dispatch and only wraps others: DTensor, FakeTensor …"""
    return getattr(kind, "__torch_dispatch__", None) is not torch.Tensor.__torch_dispatch__


storage_id: Callable[[Any], int] = getattr(torch._C, "_storage_id", lambda tensor: storage_of(tensor)._cdata)
"""The address of the tensor's C++ storage; a tenth of the time of ``storage_of``."""


def parts_of(tensor: Any) -> list[Any]:
    """The plain tensors that make up a sparse one; a mode of the program sees no operator of it."""
    if tensor.layout == torch.strided:
        return []
    with torch._C._DisableTorchDispatch():
        if tensor.layout == torch.sparse_coo:
            return [tensor._indices(), tensor._values()]
        if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
            return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
        if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
            return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []
