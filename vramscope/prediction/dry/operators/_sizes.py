"""Bytes and copies of tensors, as the families of operators count them."""

from typing import Any

from vramscope.prediction.dry.operators import Call, OwnMemory


def n_bytes(tensor: Any) -> int:
    """The bytes of all elements, each counted once for every place it has."""
    return int(tensor.numel() * tensor.element_size())


def copy_of(tensor: Any) -> tuple[int, ...]:
    """Bytes of the contiguous copy that a kernel makes of it; nothing where it lies in one piece."""
    return () if tensor is None or tensor.is_contiguous() else (n_bytes(tensor),)


def first_copied(call: Call) -> OwnMemory:
    """The contiguous copy that a kernel makes of its first argument."""
    return OwnMemory(after=copy_of(call.args[0]))


def taken(*sizes: int) -> tuple[tuple[str, int], ...]:
    """These sizes as a part of ``OwnMemory.plan``."""
    return tuple(("taken", size) for size in sizes)


def passing(size: int) -> tuple[tuple[str, int], ...]:
    """Taken and given back at once."""
    return (("taken", size), ("given", size))
