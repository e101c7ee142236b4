"""Decides whether a source file belongs to the program, to a library or to vramscope."""

import os
import sys
import sysconfig
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

_HERE = str(Path(__file__).parents[2]) + os.sep
_PURE = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
_INSTALLED = ("/site-packages/", "/dist-packages/")
_STANDARD = str(sysconfig.get_path("stdlib")) + os.sep
_TORCH = str(Path(torch.__file__).parent) + os.sep
# The demo's training script lies inside vramscope, but counts as a program.
_NOT_OURS = "_demo_train.py"


@lru_cache(4096)
def is_ours(file: str) -> bool:
    """Whether *file* belongs to vramscope itself."""
    return file.startswith(_HERE) and not file.endswith(_NOT_OURS)


@lru_cache(4096)
def is_program(file: str | None) -> bool:
    """Whether *file* is the user's own: not of torch, Python, an installed package or vramscope.

    A notebook's cells have no file.
    """
    if file is None or is_ours(file):
        return False
    if file.startswith((_TORCH, "<frozen")) or file.endswith(".so"):
        return False
    # PYTHONPATH may name the packages of another environment.
    installed = any(path is not None and file.startswith(path + os.sep) for path in _PURE) or any(
        name in file for name in _INSTALLED
    )
    return not installed and not file.startswith(_STANDARD)


def file_of_class(kind: Any) -> str:
    """The file of the program that defines a class; '' for classes of others, and of a notebook's cells."""
    module = sys.modules.get(kind.__module__) if isinstance(kind.__module__, str) else None
    file = getattr(module, "__file__", None)
    return file if file is not None and is_program(file) else ""
