"""How was the allocator configured?"""

import os
import re


def allocator_conf(torch: str) -> str:
    """The configuration string that the CUDA allocator of this version of torch reads; '' where none is set.

    With both variables set the CUDA one counts. Up to 2.9, which asks for the other in a warning, it is the
    only one that is read for CUDA (seen in 2.6, 2.9, 2.11 to 2.13).
    """
    conf = os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    if conf or _version(torch) <= (2, 9):
        return conf
    return os.environ.get("PYTORCH_ALLOC_CONF") or ""


def _version(torch: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", torch)[:2])
