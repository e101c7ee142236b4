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
    for home, name, watched in (
        (torch.cuda.CUDAGraph, "capture_end", _watched_capture),
        (getattr(torch.cuda, "MemPool", object), "__init__", _watched_pool),
    ):
        if home is not object and name in vars(home):
            replace(home, name, watched)


def _watched_capture(run: Callable[..., Any]) -> Callable[..., Any]:
    """Mark the end of a capture: before it, torch does not name the pool."""

    @functools.wraps(run)
    def capture_end(graph: Any, *args: Any, **kwargs: Any) -> Any:
        result = run(graph, *args, **kwargs)
        if state.listener is not None:
            guarded(_mark, MarkKind.GRAPH_POOL, graph.pool, sys._getframe(1))
        return result

    return capture_end


def _watched_pool(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def made(pool: Any, *args: Any, **kwargs: Any) -> None:
        run(pool, *args, **kwargs)
        if state.listener is not None:
            guarded(_mark, MarkKind.MEM_POOL, lambda: pool.id, sys._getframe(1))

    return made


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
