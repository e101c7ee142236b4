"""Checkpoints are read on the host, put where the program wants them, and never written to a file."""

import builtins
import io
import os
import pickle
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
    """Until the patches are undone ``torch.load`` knows our device, and ``torch.save`` writes no file."""
    saved.clear()
    patches.set(torch, "save", _save)
    patches.set(torch, "load", _loading(torch.load))
    for home in (builtins, io):
        patches.set(home, "open", _opening(home.open))


class _Pickler(pickle.Pickler):
    """Leaves tensors out, and numbers them."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[torch.Tensor] = []
        self.numbers: dict[int, int] = {}

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, torch.Tensor):
            return None
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.tensors)
            self.tensors.append(value)
        return self.numbers[id(value)]


class _Unpickler(pickle.Unpickler):
    """Puts tensors in where they were left out."""

    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, number: Any) -> torch.Tensor:
        return self._tensors[number]


class _Saved:
    """What the program saved: pickled, with its tensors on the host."""

    def __init__(self, what: Any) -> None:
        written = io.BytesIO()
        pickler = _Pickler(written)
        pickler.dump(what)
        self._pickled, tensors = written.getvalue(), pickler.tensors
        self._devices = [each.device for each in tensors]
        with torch.no_grad():
            self._tensors = [_alike(each, each.detach().to("cpu", copy=True)) for each in tensors]

    def loaded(self, map_location: Any) -> Any:
        """Return a copy; without a *map_location* each tensor lies where it did."""

        def made(number: int) -> torch.Tensor:
            tensor = self._tensors[number]
            place = "cuda" if _is_cuda(map_location) else "cpu"
            with torch.no_grad():
                moved = tensor.detach().to(
                    self._devices[number] if map_location is None else place, copy=True
                )
            return _alike(tensor, moved)

        copies = list(map(made, range(len(self._tensors))))
        return _Unpickler(io.BytesIO(self._pickled), copies).load()


def _alike(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(other, tensor.requires_grad)
    return other.requires_grad_(tensor.requires_grad)


saved: dict[str, _Saved | None] = {}
"""What the program saved, by the file that it names; None for what cannot be pickled."""
_OURS = str(Path(__file__).parents[3])
_HEADER = b"saved in a dry run: "


def _save(what: Any, file: Any, *__: Any, **___: Any) -> None:
    try:
        kept = _Saved(what)
    except (pickle.PicklingError, TypeError, AttributeError):
        kept = None
    name = getattr(file, "name", file)
    is_file = isinstance(name, str | os.PathLike)
    key = os.path.abspath(os.fspath(name)) if is_file else f"{_HEADER.decode()}{len(saved):020}"  # noqa: PTH100
    saved[key] = kept
    if isinstance(file, _HeldBack):
        file.is_checkpoint = True
    elif not is_file:
        file.write(key.encode())


def _kept(file: Any) -> _Saved | None:
    """Return what was saved under that name, or into that buffer."""
    name = getattr(file, "name", file)
    if isinstance(name, str | os.PathLike):
        return saved.get(os.path.abspath(os.fspath(name)))  # noqa: PTH100
    at = file.tell()
    key = file.read(len(_HEADER) + 20)
    file.seek(at)
    return saved.get(key.decode("latin-1"))


def _opening(real: Callable[..., Any]) -> Callable[..., Any]:
    def open(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:  # noqa: A001
        """Open a file; one that may become a checkpoint keeps what it has until it is known to be none."""
        if mode in ("rb", "br") and isinstance(file, str | os.PathLike) and _kept(file) is not None:
            buffer = io.BytesIO()
            buffer.name = os.fspath(file)
            return buffer
        is_binary = mode in ("wb", "bw") and not arguments and not options
        is_ours = sys._getframe(1).f_code.co_filename.startswith(_OURS)
        if not is_binary or not isinstance(file, str | os.PathLike) or is_ours:
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
        kept = _kept(file)
        if kept is not None:
            return kept.loaded(map_location)
        found = load(file, "cpu", *arguments, **options)
        if not _is_cuda(map_location):
            return found
        return tree_map_only(torch.Tensor, lambda tensor: tensor.to("cuda"), found)

    return loaded


def _is_cuda(place: Any) -> bool:
    if isinstance(place, dict):
        return any(map(_is_cuda, place.values()))
    return type(place) is int or str(place).startswith("cuda")
