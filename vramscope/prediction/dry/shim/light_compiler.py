"""``torch._dynamo`` without its import, as long as nobody compiles.

torch imports its compiler (and with it SymPy, FSDP and DTensor: 2 s, as long as the rest of torch) when a
fake mode or an optimizer is made, only to be asked for a few settings and to leave functions alone. Whoever
asks for anything else gets the real one.
"""

import gc
import importlib
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import torch

from vramscope.prediction.dry.shim.patches import Patches

_NAME = "torch._dynamo"
_CONFIG = f"{_NAME}.config"
_CALLED_ONLY = {
    f"{_NAME}._trace_wrapped_higher_order_op": ("TransformGetItemToIndex",),
    f"{_NAME}.utils": ("is_compile_supported",),
}
"""Names that transformers and torchvision import from modules of the compiler, and call in few models."""
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_TORCH = str(Path(torch.__file__).parent)
_MARKS = ("allow_in_graph", "assume_constant_result")
"""Decorators that return the function itself, and tell the compiler how to treat it."""


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


class _LightPart(ModuleType):
    """A module of the compiler some of whose names are imported by many and called by few."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in _CALLED_ONLY[self.__name__]:
            return getattr(self._real(), name)

        def call(*values: Any, **options: Any) -> Any:
            return getattr(self._real(), name)(*values, **options)

        return call

    def _real(self) -> ModuleType:
        _real()
        return importlib.import_module(self.__name__)


class _LightCompiler(ModuleType):
    """The compiler until it is needed."""

    def __init__(self) -> None:
        super().__init__(_NAME)
        vars(self).update(
            config=_LightConfig(_CONFIG),
            disable=self._disable,
            graph_break=lambda *_, **__: None,
            _left_alone=[],
            _marked=[],
            **{name: self._marking(name) for name in _MARKS},
        )

    def _disable(self, function: Callable[..., Any] | None = None, *_: Any, **__: Any) -> Callable[..., Any]:
        """Return *function* itself: nothing is compiled; torch remembers the answer at the function."""
        if function is None:  # a decorator with options
            return self._disable
        if hasattr(function, "__weakref__"):
            vars(self)["_left_alone"].append(weakref.ref(function))
        return function

    def _marking(self, name: str) -> Callable[..., Any]:
        def mark(function: Any) -> Any:
            """Return *function* itself; the real compiler learns of it when it is imported."""
            vars(self)["_marked"].append((name, function))
            return function

        return mark

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)  # whoever looks through all modules needs no compiler
        return getattr(_real(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_real(), name, value)


def _real() -> ModuleType:
    """Import the compiler, in the place of the light one."""
    light = sys.modules.get(_NAME)
    if type(light) is not _LightCompiler:
        return importlib.import_module(_NAME)
    _remove()
    with _without_frames():
        real = importlib.import_module(_NAME)
    for name, function in vars(light)["_marked"]:
        getattr(real, name)(function)
    return real


@contextmanager
def _without_frames() -> Iterator[None]:
    """Clear the frames of torch that outlive the block.

    ``torch.fx.wrap`` leaves its own frame in a cycle, which holds all frames of the program below the import,
    with their tensors, until the garbage collector runs: on a card nothing is imported there.
    """
    before = _frames()
    yield
    known = set(map(id, before))
    for frame in _frames():
        is_new = id(frame) not in known and not frame.f_code.co_flags & _SUSPENDED
        if is_new and frame.f_code.co_filename.startswith(_TORCH):
            with suppress(RuntimeError):  # it still runs
                frame.clear()


def _frames() -> list[FrameType]:
    return [each for each in gc.get_objects() if type(each) is FrameType]


def _remove() -> None:
    for name in (_NAME, _CONFIG, *_CALLED_ONLY):
        sys.modules.pop(name, None)


def install(patches: Patches) -> None:
    """Stand in for the compiler until the patches are undone, where it is not imported yet."""
    if _NAME in sys.modules or "_dynamo" in vars(torch):
        return
    light = _LightCompiler()
    sys.modules[_NAME], sys.modules[_CONFIG] = light, vars(light)["config"]
    sys.modules.update({name: _LightPart(name) for name in _CALLED_ONLY})

    def undo() -> None:
        if sys.modules.get(_NAME) is light:
            _remove()
        for reference in vars(light)["_left_alone"]:
            function = reference()
            if function is not None:
                # torch's own name for what it has learned about a function.
                vars(function).pop("__dynamo_disable", None)

    patches.then(undo)
