"""What used the GPU memory: a live profiler and timeline for PyTorch training.

``with vramscope.record("traces/run"):`` around a loop or a step; ``vramscope.load(path)`` opens what
was recorded, or any snapshot that torch wrote. Names are resolved on first use: importing vramscope
loads neither torch nor NumPy nor Arrow.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from vramscope._version import __version__

if TYPE_CHECKING:
    from vramscope.dry_run import Prediction, predict
    from vramscope.errors import VramscopeError
    from vramscope.integrations.batch_size import find_batch_size
    from vramscope.loading import load
    from vramscope.recorder import Recorder, record

__all__ = [
    "Prediction",
    "Recorder",
    "VramscopeError",
    "__version__",
    "find_batch_size",
    "load",
    "predict",
    "record",
]

_HOME = {
    "Prediction": "vramscope.dry_run",
    "Recorder": "vramscope.recorder",
    "VramscopeError": "vramscope.errors",
    "find_batch_size": "vramscope.integrations.batch_size",
    "load": "vramscope.loading",
    "predict": "vramscope.dry_run",
    "record": "vramscope.recorder",
}


class _Package(ModuleType):
    """Keeps ``vramscope.load`` the function: importing ``vramscope/loading.py`` would make it the module."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'vramscope' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
