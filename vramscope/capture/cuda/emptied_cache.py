"""Shows who calls ``empty_cache()``, which the history shows only if it also takes the stack of every free.

No analysis asks for the stack of a free, and torch takes as long for it as for that of an allocation. So the
history has none (``context="alloc"``), except while the program empties the cache.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from vramscope.capture.hooks.open_phases import replace
from vramscope.capture.torch_versions.private_functions import ACCELERATOR_EMPTY_CACHE, EMPTY_CACHE, found


def hook_emptied_cache(take_stacks: Callable[[bool], None]) -> None:
    """Take the stacks of frees while the program empties the cache, until ``hooks.uninstall``.

    *take_stacks* is called with True before each call and with False after it. It may not raise.
    """

    def watched(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def emptied(*args: Any, **kwargs: Any) -> Any:
            take_stacks(True)
            try:
                return original(*args, **kwargs)
            finally:
                take_stacks(False)

        return emptied

    for function in (EMPTY_CACHE, ACCELERATOR_EMPTY_CACHE):  # every empty_cache() of torch calls one
        if found(function) is not None:
            replace(torch._C, function.name, watched)
