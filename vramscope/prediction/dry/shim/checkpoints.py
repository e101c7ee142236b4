"""Checkpoints are read on the host, put where the program wants them, and never written."""

import builtins
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from vramscope.prediction.dry.shim.patches import Patches


def keep_apart(patches: Patches) -> None:
    """Until the patches are undone ``torch.load`` knows our device, and ``torch.save`` writes nothing."""
    saved.clear()
    patches.set(torch, "save", _save)
    patches.set(torch, "load", _loading(torch.load))
    for home in (builtins, io):
        patches.set(home, "open", _opening(home.open))


saved: set[str] = set()
"""The files that the program would have written with ``torch.save``."""
_OURS = str(Path(__file__).parents[3])


def _save(_: Any, file: Any, *__: Any, **___: Any) -> None:
    name = getattr(file, "name", file)
    if isinstance(name, str | os.PathLike):
        saved.add(os.fspath(name))
    if isinstance(file, _HeldBack):
        file.is_checkpoint = True


def _opening(real: Callable[..., Any]) -> Callable[..., Any]:
    def open(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:  # noqa: A001
        """Open a file; one that may become a checkpoint keeps what it has until it is known to be none."""
        is_binary = mode in ("wb", "bw") and not arguments and not options
        if not is_binary or not isinstance(file, str | os.PathLike) or _is_ours(sys._getframe(1)):
            return real(file, mode, *arguments, **options)
        path = Path(os.fsdecode(file))
        is_new = not os.path.lexists(path)
        if not (is_new or path.is_file()):
            return real(file, mode)
        real(file, "ab").close()  # raises as it would have
        if is_new:
            path.unlink()
        return _HeldBack(file, real)

    return open


def _is_ours(frame: Any) -> bool:
    return bool(frame.f_code.co_filename.startswith(_OURS))


class _HeldBack(io.BufferedWriter):
    """What the program writes, put into its file when it is closed, unless it is a checkpoint."""

    is_checkpoint = False

    def __init__(self, path: Any, real: Callable[..., Any]) -> None:
        handle, self._written = tempfile.mkstemp(prefix="vramscope-")
        self._path, self._open = path, real
        raw = io.FileIO(handle, "w")
        raw.name = path
        super().__init__(raw)

    def close(self) -> None:
        """Close it; a checkpoint leaves the file as it was."""
        was_closed = self.closed
        super().close()
        if was_closed:
            return
        if not self.is_checkpoint:
            with self._open(self._written, "rb") as written, self._open(self._path, "wb") as file:
                shutil.copyfileobj(written, file)
        os.unlink(self._written)  # noqa: PTH108 -- a name of its own


def _loading(load: Callable[..., Any]) -> Callable[..., Any]:
    def loaded(file: Any, map_location: Any = None, *arguments: Any, **options: Any) -> Any:
        """Read with the host's memory, then move what belongs to the card."""
        found = load(file, "cpu", *arguments, **options)
        if not _is_cuda(map_location):
            return found
        return tree_map_only(torch.Tensor, lambda tensor: tensor.to("cuda"), found)

    return loaded


def _is_cuda(place: Any) -> bool:
    if isinstance(place, dict):
        return any(map(_is_cuda, place.values()))
    return type(place) is int or str(place).startswith("cuda")
