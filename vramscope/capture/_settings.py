"""How was the allocator configured?"""

import os


def allocator_conf() -> str:
    """The configuration string that torch's CUDA allocator reads; '' where none is set.

    With both variables set torch 2.13 takes the CUDA one.
    """
    return os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF") or ""
