"""What differs between versions of torch: its private functions, and the variables that it reads."""

import os
import re


def version(text: str) -> tuple[int, ...]:
    """The major and the minor number of a version of torch: (2, 9) of ``2.9.1+cu128``."""
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:2])


def allocator_conf(torch: str) -> str:
    """The configuration string that the CUDA allocator of this version of torch reads; '' where none is set.

    If both variables are set, ``PYTORCH_CUDA_ALLOC_CONF`` wins. Up to torch 2.9 it is the only one that CUDA
    reads, although 2.9 warns that the other one should be used (seen in 2.6, 2.9, 2.11 to 2.13).
    """
    conf = os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    if conf or version(torch) <= (2, 9):
        return conf
    return os.environ.get("PYTORCH_ALLOC_CONF") or ""
