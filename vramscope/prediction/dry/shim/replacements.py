"""Operators that choose on CUDA what they do not choose elsewhere: done in their stead on our own device."""

import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from vramscope.prediction.dry import operators


@cache
def replacements() -> Mapping[str, Callable[..., Any]]:
    """What each family of operators brings as ``REPLACEMENTS``, by the operator's name."""
    found: dict[str, Callable[..., Any]] = {}
    for module in pkgutil.iter_modules(operators.__path__):
        if not module.name.startswith("_"):
            found.update(getattr(import_module(f"{operators.__name__}.{module.name}"), "REPLACEMENTS", {}))
    return found


# One kernel on CUDA, and several operators wherever a device has none of its own.
WHOLE = ("silu_backward", "mish_backward", "_fused_rms_norm")


def install(library: Any) -> None:
    """A kernel above autograd for each, as long as *library* lives."""
    for name in WHOLE:
        # Never called: fakes are dispatched before it. But with it torch takes the operator as one.
        library.impl(name, _unreachable, "PrivateUse1")
    for name, run in replacements().items():
        library.impl(name, run, "AutogradPrivateUse1")


def _unreachable(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("a tensor on this device has no content")
