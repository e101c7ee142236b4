"""``from_pretrained`` of transformers without weights: the model is built from its configuration alone."""

import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import torch

from vramscope.capture.predicted.doubts import Certainty, Doubts
from vramscope.capture.predicted.shim.patches import Patches

_HOME = "transformers.modeling_utils"
_LOADED = "weights are placed on the card by transformers itself: its allocations while loading are not known"


def build(patches: Patches, doubts: Doubts) -> None:
    """Replace the method where transformers is imported, or as soon as the program imports it."""
    home = sys.modules.get(_HOME)
    if home is not None:
        _replace(home, patches, doubts)
        return
    finder = _Finder(lambda module: _replace(module, patches, doubts))
    sys.meta_path.insert(0, finder)
    patches.then(lambda: sys.meta_path.remove(finder))


class _Finder(MetaPathFinder):
    """Finds one module where Python finds it, and does something when it has run."""

    def __init__(self, then: Callable[[ModuleType], None]) -> None:
        self._then = then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        """Return the spec of that one module, with a loader that acts afterwards."""
        spec = PathFinder.find_spec(name, path) if name == _HOME else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Then(spec.loader, self._then)
        return spec


class _Then(Loader):
    def __init__(self, loader: Loader, then: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._then(module)


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
