"""Whose code is in this file: the program's, a library's, or ours?"""

import os
import sysconfig
from functools import lru_cache
from pathlib import Path

import torch

_HERE = str(Path(__file__).parents[2]) + os.sep
_PURE = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
_STANDARD = str(sysconfig.get_path("stdlib")) + os.sep
_TORCH = str(Path(torch.__file__).parent) + os.sep
# The demo trains from inside of vramscope.
_NOT_OURS = "_demo_train.py"


@lru_cache(4096)
def is_ours(file: str) -> bool:
    """A file of vramscope."""
    return file.startswith(_HERE) and not file.endswith(_NOT_OURS)


@lru_cache(4096)
def is_program(file: str | None) -> bool:
    """The user's own: not torch's, Python's, an installed package's or ours. A notebook has no files."""
    if file is None or is_ours(file):
        return False
    if file.startswith((_TORCH, "<frozen")) or file.endswith(".so"):
        return False
    installed = any(path is not None and file.startswith(path + os.sep) for path in _PURE)
    return not installed and not file.startswith(_STANDARD)
