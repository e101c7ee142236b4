"""Checkpoints are read on the host, put where the program wants them, and never written."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from vramscope.capture.predicted.shim.patches import Patches


def keep_apart(patches: Patches) -> None:
    """Until the patches are undone ``torch.load`` knows our device, and ``torch.save`` writes nothing."""
    patches.set(torch, "save", lambda *_, **__: None)
    patches.set(torch, "load", _loading(torch.load))


def _loading(load: Callable[..., Any]) -> Callable[..., Any]:
    def loaded(file: Any, map_location: Any = None, *arguments: Any, **options: Any) -> Any:
        """Read with the host's memory, then move what belongs to the card."""
        found = load(file, "cpu", *arguments, **options)
        if not _is_cuda(map_location):
            return found
        return tree_map_only(torch.Tensor, lambda tensor: tensor.to("cuda"), found)

    return loaded


def _is_cuda(place: Any) -> bool:
    if isinstance(place, dict):
        return any(map(_is_cuda, place.values()))
    return type(place) is int or str(place).startswith("cuda")
