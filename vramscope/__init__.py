"""What used the GPU memory: a live profiler and timeline for PyTorch training.

``with vramscope.record("traces/run"):`` around a loop or a step; ``vramscope.load(path)`` opens what
was recorded, or any snapshot that torch wrote. Names are resolved on first use: importing vramscope
loads neither torch nor NumPy nor Arrow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vramscope._version import __version__

if TYPE_CHECKING:
    from vramscope.errors import (
        CaptureError,
        FormatError,
        MissingExtraError,
        StoreError,
        UnknownNameError,
        UsageError,
        VramscopeError,
    )
    from vramscope.loading import follow, load
    from vramscope.model.recording import Recording, Run
    from vramscope.prediction import Prediction, predict, predict_largest
    from vramscope.recorder import Recorder, record
    from vramscope.recorder.from_outside.listener import allow_attach

__all__ = [
    "CaptureError", "FormatError", "MissingExtraError", "Prediction", "Recorder", "Recording", "Run",
    "StoreError", "UnknownNameError", "UsageError", "VramscopeError", "__version__", "allow_attach",
    "follow", "load", "predict", "predict_largest", "record",
]  # fmt: skip

_HOME = {
    "CaptureError": "vramscope.errors",
    "FormatError": "vramscope.errors",
    "MissingExtraError": "vramscope.errors",
    "Prediction": "vramscope.prediction",
    "Recorder": "vramscope.recorder",
    "Recording": "vramscope.model.recording",
    "Run": "vramscope.model.recording",
    "StoreError": "vramscope.errors",
    "UnknownNameError": "vramscope.errors",
    "UsageError": "vramscope.errors",
    "VramscopeError": "vramscope.errors",
    "allow_attach": "vramscope.recorder.from_outside.listener",
    "follow": "vramscope.loading",
    "load": "vramscope.loading",
    "load_ipython_extension": "vramscope.integrations.notebook",  # for IPython: %load_ext vramscope
    "predict": "vramscope.prediction",
    "predict_largest": "vramscope.prediction",
    "record": "vramscope.recorder",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'vramscope' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
