"""Hooks on what makes private pools: MemPools, and captures of CUDA graphs."""

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from vramscope.capture.hooks.open_phases import Listener, guarded, replace, state
from vramscope.capture.log import cell_name
from vramscope.model.marks import MarkKind, Phase, pool_number

_TORCH = str(Path(torch.__file__).parent) + os.sep
_INSTALLED = ("/site-packages/", "/dist-packages/")


def hook_pools() -> None:
    """Hook the making of pools until ``uninstall``; older versions of torch have no MemPool."""
    # Before the end of a capture torch does not name its pool.
    _watch(torch.cuda.CUDAGraph, "capture_end", MarkKind.GRAPH_POOL, lambda graph: graph.pool())
    _watch(getattr(torch.cuda, "MemPool", None), "__init__", MarkKind.MEM_POOL, lambda pool: pool.id)


def _watch(home: type | None, name: str, kind: MarkKind, id_of: Callable[[Any], Any]) -> None:
    def watched(run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def made(of: Any, *args: Any, **kwargs: Any) -> Any:
            result = run(of, *args, **kwargs)
            if state.listener is not None:
                guarded(_mark, kind, lambda: id_of(of), sys._getframe(1))
            return result

        return made

    if home is not None and name in vars(home):
        replace(home, name, watched)


def _mark(listener: Listener, kind: MarkKind, ask: Callable[[], Any], frame: FrameType) -> None:
    first, second = ask()
    listener.mark(kind, Phase.OTHER, pool_number(first, second), _place(frame))


def _place(frame: FrameType | None) -> str:
    """The program's innermost line, or else that of the library that called torch."""
    library = ""
    while frame is not None:
        file = frame.f_code.co_filename
        place = f"{cell_name(file)}:{frame.f_lineno}"
        if not file.startswith((_TORCH, "<frozen")) and not file.endswith("/contextlib.py"):
            if not any(name in file for name in _INSTALLED):
                return place
            library = library or place
        frame = frame.f_back
    return library
