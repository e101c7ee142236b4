"""Tables of vectors: the gradient of more than 3,072 rows is summed over sorted indices."""

import math
from typing import Any

import torch

from vramscope.prediction.dry.doubts import Certainty
from vramscope.prediction.dry.operators import Call, OwnMemory
from vramscope.prediction.dry.operators._reduce import copy_of, n_bytes, passing, taken
from vramscope.prediction.dry.values import known

_INDEX, _SELECT = torch.ops.aten.index.Tensor, torch.ops.aten.masked_select.default
# cub's own memory, as it asked for it on Hopper: a scan of a few thousand elements, and a sort in one block.
_SCAN, _SORT_IN_ONE_BLOCK, _LARGEST_BLOCK = 1279, 1, 2048
_FEW = 3072
_ROWS_A_THREAD = 10


def sort_bytes(count: int, keys: int = 1 << 62) -> int:
    """What cub takes to sort so many pairs of 8 bytes each: its counters, and both once more.

    With at most 256 *keys* one pass over a byte does, from the input to the output, in tiles.
    """
    if count <= _LARGEST_BLOCK:
        return _SORT_IN_ONE_BLOCK
    return 2815 + 1024 * -(-count // 4608) if keys <= 256 else 4607 + 16 * count + count // 4


def _backward(call: Call) -> OwnMemory:
    grad, indices = call.args[0], call.args[1]
    copies = taken(*copy_of(grad))
    if indices.numel() <= _FEW and not call.given("scale_grad_by_freq", False):
        return OwnMemory(plan=(*copies, ("made", 0)))
    return OwnMemory(plan=(*copies, *_sorted_sum(call.out, indices, grad.size(-1))), doubt=_scaled(call))


def _bag_backward(call: Call) -> OwnMemory:
    grad, indices = call.args[0], call.args[1]
    copies = taken(*copy_of(grad))
    if call.given("mode", 0) == 2:
        return OwnMemory(plan=(*copies, ("made", 0)))
    return OwnMemory(plan=(*copies, *_sorted_sum(call.out, indices, grad.size(-1))), doubt=_scaled(call))


def _scaled(call: Call) -> tuple[Certainty, str] | None:
    if call.given("scale_grad_by_freq", False):
        return Certainty.ESTIMATE, "what scaling by frequency takes is not in the table"
    return None


def _sorted_sum(table: Any, indices: Any, width: int) -> tuple[tuple[str, Any], ...]:
    count, rows = indices.numel(), table.size(0)
    places, segments = 8 * count, min(count, rows)
    parts = count // _ROWS_A_THREAD + segments
    return (
        *taken(places, places, places),
        *passing(sort_bytes(count, rows)),
        ("given", places),
        ("made", 0),
        *taken(places, 8, places),
        *passing(_SCAN),
        ("given", places),
        *taken(8 * segments, 8 * segments),
        *passing(_SCAN),
        *taken(8, 8 * parts, parts * width * max(table.element_size(), 4)),
    )


_MASK = (Certainty.ESTIMATE, "what a mask takes to become indices is known within a range")


def _is_mask(index: Any) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _index(call: Call) -> OwnMemory:
    return _masked(call.given("indices"))


def _masked(indices: Any) -> OwnMemory:
    """A mask becomes indices by ``nonzero``: whole numbers, twice as many as places, and counters."""
    masks = [one for one in indices if _is_mask(one)]
    places = sum(one.numel() * max(one.dim(), 1) for one in masks)
    return OwnMemory(doubt=_MASK, perhaps=16 * places + (1 << 16)) if masks else OwnMemory()


def _put(call: Call) -> OwnMemory:
    """A number of the host goes to the device first; rows to be added up are sorted by where they go."""
    values = call.given("values")
    indices = [one for one in call.given("indices") if one is not None]
    if any(map(_is_mask, indices)):
        masked = _masked(indices)
        return masked._replace(perhaps=masked.perhaps + 8 * n_bytes(values))
    if not call.given("accumulate", False):
        return OwnMemory(after=(values.element_size(),) if values.device.type == "cpu" else ())
    table = call.args[0]
    places = [at for at, one in enumerate(call.given("indices")) if one is not None]
    # Indexed dimensions that are no neighbours come first, in a copy of the table.
    are_neighbours = places[-1] - places[0] < len(places)
    keyed = table.shape[: places[-1] + 1] if are_neighbours else [table.shape[at] for at in places]
    copied = copy_of(table) if are_neighbours else (n_bytes(table),)
    added = _added(indices, values, copied, math.prod(keyed))
    return OwnMemory(plan=(*((("made", 0),) if call.out is not table else ()), *added))


def _added(
    indices: list[Any], values: Any, copied: tuple[int, ...], keys: int
) -> tuple[tuple[str, Any], ...]:
    count = max((one.numel() for one in indices), default=0)
    plan: list[tuple[str, Any]] = []
    for number, _ in enumerate(indices):
        plan += [*taken(8, 8), *passing(1), *passing(1), ("given", 8), ("given", 8)]
        plan += [*taken(8 * count, 8 * count), ("given", 8 * count)]
        if number:
            plan.append(("given", 8 * count))
    if not values.is_contiguous():
        plan.append(("taken", n_bytes(values)))
    plan += [*taken(*copied, 8 * count, 8 * count, 8 * count), *passing(sort_bytes(count, keys))]
    return tuple(plan)


def _places(index: Any) -> list[Any]:
    value = known.value_of(index) if _is_mask(index) and index.dim() else None
    if value is None:
        return [index]
    return [index.new_empty(known.count(value, index.shape), dtype=torch.int64)] * index.dim()


def _selected(source: Any, mask: Any) -> Any:
    value = known.value_of(mask)
    if value is None:
        return _SELECT(source, mask)
    return source.new_empty(known.count(value, torch.broadcast_shapes(source.shape, mask.shape)))


SHAPES = {
    # What known masks choose has a size, though its values are unknown: masks become places.
    _INDEX: lambda source, indices: _INDEX(source, [place for one in indices for place in _places(one)]),
    _SELECT: _selected,
}
