"""A dry run opens no connection and writes no checkpoint: what would is refused or does nothing."""

import functools
import importlib
import importlib.util
import socket
from collections.abc import Callable
from typing import Any

from vramscope.prediction.dry.shim.patches import Patches


def refuse(patches: Patches) -> None:
    """Until the patches are undone."""
    for name in ("connect", "connect_ex"):
        patches.set(socket.socket, name, _local_alone(getattr(socket.socket, name)))
    patches.set(socket, "create_connection", _refused)
    patches.set(socket, "getaddrinfo", _refused)
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
        patches.set_environment(name, "1")
    patches.set_environment("WANDB_MODE", "disabled")
    if importlib.util.find_spec("safetensors") is not None:
        home = importlib.import_module("safetensors.torch")
        for name in ("save_file", "save_model"):
            patches.set(home, name, _nothing)


def _local_alone(connect: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(connect)
    def local(own: socket.socket, address: Any) -> Any:
        # Workers of data loaders hand tensors over through a socket in the file system, which has a path.
        return connect(own, address) if isinstance(address, str | bytes) else _refused()

    return local


def _refused(*_: Any, **__: Any) -> Any:
    raise ConnectionError("a dry run opens no connection")


def _nothing(*_: Any, **__: Any) -> None:
    """Saves nothing."""
