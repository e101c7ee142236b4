"""transformers in a dry run: models are built from their configuration, and nothing is traced."""

import functools
import sys
from types import ModuleType
from typing import Any

import torch

from vramscope.prediction.dry.doubts import Certainty, Doubts
from vramscope.prediction.dry.shim.patches import Patches, when_imported

_LOADED = "weights are placed on the card by transformers itself: its allocations while loading are not known"
_STRUCTURE = "create_import_structure_from_path"


def build(patches: Patches, doubts: Doubts) -> None:
    """Replace the method where transformers is imported, or as soon as the program imports it."""
    when_imported(patches, "transformers.modeling_utils", lambda home: _replace(home, patches, doubts))
    when_imported(patches, "transformers.utils.import_utils", lambda home: _read_once(home, patches))
    when_imported(patches, "transformers.utils.import_utils", lambda home: _runs_eagerly(home, patches))


def _runs_eagerly(home: ModuleType, patches: Patches) -> None:
    """Make transformers take a fake tensor for what it stands for: for it, such a tensor means tracing.

    While it traces it makes every causal mask, which it leaves out on a card: 1.8 % of a small model's peak
    on an H100.
    """
    if hasattr(home, "is_fake_tensor"):
        patches.set(home, "is_fake_tensor", lambda _: False)


def _read_once(home: ModuleType, patches: Patches) -> None:
    """Make transformers read each of its files once while it is imported.

    It reads all 3,300 of them, for the names that they offer, and then all of them again: it remembers 128
    folders and has 450. That is 0.6 of the 2.4 s that its import takes.
    """
    read = getattr(getattr(home, _STRUCTURE, None), "__wrapped__", None)
    if read is not None:
        patches.set(home, _STRUCTURE, functools.cache(read))


def _replace(home: ModuleType, patches: Patches, doubts: Doubts) -> None:
    def from_pretrained(cls: Any, /, name: Any, *arguments: Any, config: Any = None, **options: Any) -> Any:
        """Build the model of a configuration; weights are neither fetched nor read."""
        if options.get("quantization_config") is not None or options.get("load_in_8bit"):
            raise NotImplementedError("quantized weights are not predicted; give the model without")
        place = options.get("device_map")
        if config is None or isinstance(config, str):
            config = cls.config_class.from_pretrained(config or name)
        dtype = options.get("dtype", options.get("torch_dtype", getattr(config, "dtype", None)))
        if isinstance(dtype, str):
            dtype = getattr(torch, dtype, getattr(config, "dtype", None))
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype or before)
        try:
            model = cls(config, *arguments)
        finally:
            torch.set_default_dtype(before)
        if place is not None and place != "cpu":
            doubts.add(Certainty.ESTIMATE, f"{cls.__name__}.from_pretrained", _LOADED, sys._getframe(1))
            model = model.to("cuda")
        return model.eval()

    patches.set(home.PreTrainedModel, "from_pretrained", classmethod(from_pretrained))
    patches.set(home.PreTrainedModel, "save_pretrained", lambda *_, **__: None)
