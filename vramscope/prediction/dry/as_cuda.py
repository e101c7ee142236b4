"""A program that never asks for the card, run as if it did: ``vramscope predict --as-cuda``.

Tensors that it makes without a device lie on the card, and so do arrays of NumPy that become tensors and the
batches of data loaders. What it puts on ``cpu`` itself stays there.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_map_only
from torch.utils.data import dataloader, get_worker_info

from vramscope.prediction.dry.doubts import Certainty, Doubt, Doubts
from vramscope.prediction.dry.shim.patches import Patches

_WHY = "what it makes without a device lies on the card, with the batches of its data loaders"


class AsCuda:
    """Decides what lies on the card although nobody says so."""

    def __init__(self, own: torch.device) -> None:
        self._own = own
        self._is_loading = False

    def begin(self, patches: Patches, doubts: Doubts) -> None:
        """Begin until the patches are undone."""
        doubts.put(Doubt(Certainty.ESTIMATE, "--as-cuda", _WHY, where=""))
        kind = dataloader._BaseDataLoaderIter
        patches.set(kind, "__next__", self._moving(kind.__next__))
        patches.set(torch, "from_numpy", self._moving(torch.from_numpy))

    def is_meant(self, func: Any) -> bool:
        """Whether a function that is called now makes a tensor of the card: samplers work on the host."""
        asks = sys._getframe(2).f_globals.get("__name__", "")
        is_of_host = self._is_loading or get_worker_info() is not None or asks.startswith("torch.utils.data")
        return not is_of_host and func in _device_constructors()

    def _moving(self, run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def moved(*values: Any) -> Any:
            was_loading, self._is_loading = self._is_loading, True
            try:
                found = run(*values)
            finally:
                self._is_loading = was_loading
            if was_loading or get_worker_info() is not None:
                return found
            return tree_map_only(torch.Tensor, lambda one: one.to(self._own), found)

        return moved
