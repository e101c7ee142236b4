"""Tells which tensors are this rank's shard of a larger one, as DTensor and FSDP themselves say.

Only attributes of the program's own objects are read: nothing communicates, and no module is imported.
"""

import sys
from contextlib import suppress
from typing import Any

from vramscope.capture.hooks.modules import modules_of
from vramscope.model.marks import Category

_CATEGORY_OF_SHARD = {
    Category.PARAMETER: Category.SHARDED_PARAMETER,
    Category.GRADIENT: Category.SHARDED_GRADIENT,
}


def flat_shards(module: Any) -> dict[int, int]:
    """The number of elements of this rank's flat shard, by ``id()`` of each parameter that FSDP1 put into it.

    FSDP1 keeps the parameters of a module in one flat parameter. With ``use_orig_params=True`` the program
    sees views of it instead.

    Empty where FSDP1 shards nothing: NO_SHARD keeps whole parameters, and so does a world of one rank.
    """
    found: dict[int, int] = {}
    if "torch.distributed.fsdp._flat_param" not in sys.modules:
        return found
    # A handle is private to torch, and other versions may have other attributes.
    with suppress(Exception):
        for _, each in modules_of(module):
            handle = each.__dict__.get("_handle")
            if getattr(handle, "uses_sharded_strategy", False):
                flat = handle.flat_param
                numel = int(flat._sharded_size.numel())
                for parameter in (flat, *(flat._params or ())):
                    found[id(parameter)] = numel
    return found


def category_of(category: Category, tensor: Any, storage: Any, shard_numel: int) -> Category:
    """The category of a tensor of the model: that of shards where the tensor is one.

    *category* is what a whole tensor in its place would be, *shard_numel* the elements of the flat shard that
    it belongs to, 0 for none. While a module computes, the same parameter shows the gathered one, which is
    larger.
    """
    of_shard = _CATEGORY_OF_SHARD.get(category)
    if of_shard is None:
        return category
    with suppress(Exception):
        if hasattr(type(tensor), "_local_tensor"):
            # torch has two classes of placements that give each rank a part, and neither is the other's.
            kinds = ((each.is_shard(), type(each).__name__) for each in tensor.placements)
            return of_shard if any(is_one or name == "_StridedShard" for is_one, name in kinds) else category
        if shard_numel and storage.nbytes() == shard_numel * tensor.element_size():
            return of_shard
    return category
