"""``torch._dynamo`` without its import, as long as nobody compiles.

torch imports its compiler (and with it SymPy, FSDP and DTensor: 2 s, as long as the rest of torch) when a
fake mode or an optimizer is made, only to be asked for a few settings and to leave functions alone. Whoever
asks for anything else gets the real one.
"""

import importlib
import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from vramscope.capture.predicted.shim.patches import Patches

_NAME = "torch._dynamo"


class _LightConfig(ModuleType):
    """The settings that fake tensors and checkpointing ask for; any other is the real compiler's."""

    fake_tensor_cache_enabled = True
    fake_tensor_cache_crosscheck_enabled = False
    _custom_ops_profile = None
    error_on_nested_fx_trace = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_real().config, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_real().config, name, value)


class _Light(ModuleType):
    """The compiler until it is needed."""

    def __init__(self) -> None:
        super().__init__(_NAME)
        vars(self).update(
            config=_LightConfig(f"{_NAME}.config"),
            disable=self._disable,
            graph_break=lambda *_, **__: None,
            _left_alone=[],
        )

    def _disable(self, function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        """Return *function* itself: nothing is compiled; torch remembers the answer at the function."""
        vars(self)["_left_alone"].append(weakref.ref(function))
        return function

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)  # whoever looks through all modules needs no compiler
        return getattr(_real(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_real(), name, value)


def _real() -> ModuleType:
    """Import the compiler, in the place of the light one."""
    if type(sys.modules.get(_NAME)) is _Light:
        _remove()
    return importlib.import_module(_NAME)


def _remove() -> None:
    for name in (_NAME, f"{_NAME}.config"):
        sys.modules.pop(name, None)


def install(patches: Patches) -> None:
    """Stand in for the compiler until the patches are undone, where it is not imported yet."""
    if _NAME in sys.modules or "_dynamo" in vars(torch):
        return
    light = _Light()
    sys.modules[_NAME], sys.modules[f"{_NAME}.config"] = light, vars(light)["config"]

    def undo() -> None:
        if sys.modules.get(_NAME) is light:
            _remove()
        for reference in vars(light)["_left_alone"]:
            function = reference()
            if function is not None:
                # torch's own name for what it has learned about a function.
                vars(function).pop("__dynamo_disable", None)

    patches.then(undo)
