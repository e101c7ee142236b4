"""A dry run opens no connection and writes no checkpoint: what would is refused or does nothing."""

import importlib
import importlib.util
import socket
from typing import Any

from vramscope.capture.predicted.shim.patches import Patches

_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "WANDB_MODE": "disabled",
}


def refuse(patches: Patches) -> None:
    """Until the patches are undone."""
    patches.set(socket.socket, "connect", _refused)
    patches.set(socket.socket, "connect_ex", _refused)
    patches.set(socket, "create_connection", _refused)
    patches.set(socket, "getaddrinfo", _refused)
    for name, value in _OFFLINE.items():
        patches.set_environment(name, value)
    if importlib.util.find_spec("safetensors") is not None:
        home = importlib.import_module("safetensors.torch")
        for name in ("save_file", "save_model"):
            patches.set(home, name, _nothing)


def _refused(*_: Any, **__: Any) -> Any:
    raise ConnectionError("a dry run opens no connection")


def _nothing(*_: Any, **__: Any) -> None:
    """Saves nothing."""
