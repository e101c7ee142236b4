"""Reads what a node of autograd's graph holds, without unpacking saved tensors."""

from collections.abc import Iterator
from functools import cache
from typing import Any


def node_name(node: Any) -> str:
    """The class name of a node, such as ``MulBackward0``."""
    return type(node).__name__


@cache
def saved_names(kind: type) -> tuple[str, ...]:
    """The attributes in which nodes of this class hold raw saved tensors."""
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))


def saved(node: Any, attribute: str) -> Iterator[Any]:
    """The tensors a node saved, not unpacked: unpacking would run hooks and create tensors."""
    try:
        raw = getattr(node, attribute)
    except RuntimeError:  # backward freed it
        return
    for each in raw if isinstance(raw, tuple | list) else (raw,):
        data = getattr(each, "data", None)  # not in every version of torch
        if data is not None:
            yield data


def variable(node: Any) -> Any:
    """The tensor that an AccumulateGrad node accumulates into; None for other nodes."""
    try:
        return getattr(node, "variable", None)
    except RuntimeError:
        return None
