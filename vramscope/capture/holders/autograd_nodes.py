"""What does a node of autograd's graph hold? Read as it is, nothing unpacked."""

from collections.abc import Iterator
from functools import cache
from typing import Any


def node_name(node: Any) -> str:
    return type(node).__name__


@cache
def saved_names(kind: type) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))


def saved(node: Any, attribute: str) -> Iterator[Any]:
    """What a node saved, as it is: unpacking would run hooks and make tensors."""
    try:
        raw = getattr(node, attribute)
    except RuntimeError:  # backward freed it
        return
    for each in raw if isinstance(raw, tuple | list) else (raw,):
        data = getattr(each, "data", None)  # not in every version of torch
        if data is not None:
            yield data


def variable(node: Any) -> Any:
    try:
        return getattr(node, "variable", None)
    except RuntimeError:
        return None
